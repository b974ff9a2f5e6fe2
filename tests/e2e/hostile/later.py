"""What goes on in the background: it calls what nobody else calls, while the run is on and after it."""

import os
import time

from common import attempt, later, look, play, read
from outside import ECHOES, ask


def itself():
    """What a program that was started so finds in its process."""
    look("later-environment", repr(dict(os.environ)).encode())
    for name in ["environ", "cmdline", "maps", "status", "mountinfo"]:
        attempt(f"later {name}", read, f"/proc/self/{name}")


def its_service():
    for how in ECHOES:
        later(f"later service {how}", ask, {"service": "later", "method": "say", "args": {"how": how, "text": "x"}})
    for status in [301, 401, 429, 500]:
        later(f"later service {status}", ask, {"service": "later", "method": "fail", "args": {"status": str(status)}})


def again(dice):
    time.sleep(1)
    return ask({"service": dice.choice(["later", "mirror"]), "method": "say", "args": {"how": dice.choice(ECHOES), "text": "x"}})


if __name__ == "__main__":
    play([itself, its_service], [again])
