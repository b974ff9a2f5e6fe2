"""What the hostile scripts share: what they were told, what they look for, and where they put what they got.

They know everything about the installation but its secrets: names, ports, paths, ids, and what a secret looks like.
"""

import base64
import json
import os
import random
import re
import sys
import threading
import time
import traceback
import zlib
from concurrent.futures import ThreadPoolExecutor

WORKSPACE = os.getcwd()
REPORT = os.path.join(WORKSPACE, "report")
TOLD = json.load(open(os.path.join(WORKSPACE, "told.json")))
MARK = TOLD["mark"].encode()
# The disk is small, and what is found twice is found; there is always room for what looks like a secret.
KEPT_AT_MOST = 10 << 20
FOUND_AT_MOST = 16 << 20
kept = 0
keeping = threading.Lock()
waiting = []


def spelled():
    """How a secret may begin: as it is, backwards, wide, in base64 wherever it stands, in hexadecimal, in percents."""
    yield MARK
    yield MARK[::-1]
    yield b"".join(bytes([letter, 0]) for letter in MARK)
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + MARK)
        yield encoded[(before * 8 + 5) // 6 : (before + len(MARK)) * 8 // 6]
    for digits in (MARK.hex(), MARK.hex().upper()):
        yield digits.encode()
        yield "".join(f"%{digits[at : at + 2]}" for at in range(0, len(digits), 2)).encode()
    yield from (b"bljs_", b"blj_", b"sk-test-", b"PRIVATE KEY-----")


SPELLED = sorted(set(spelled()))


def found(data):
    """The places of some data that look like a secret, with what stands round them."""
    for needle in SPELLED:
        at = data.find(needle)
        for _ in range(50):
            if at < 0:
                break
            yield data[max(0, at - 512) : at + 512]
            at = data.find(needle, at + 512)


def keep(name, data):
    """Puts something into the report."""
    global kept
    if isinstance(data, str):
        data = data.encode(errors="surrogateescape")
    with keeping:
        if kept + len(data) > (FOUND_AT_MOST if name.startswith("found") else KEPT_AT_MOST):
            return
        kept += len(data)
        try:
            os.makedirs(REPORT, exist_ok=True)
            with open(os.path.join(REPORT, re.sub(r"[^0-9A-Za-z_.-]", "_", name)[:100]), "ab") as file:
                file.write(data + b"\n")
        except OSError:
            # Another attempt has just used up the disk, or every descriptor.
            pass


def views(data):
    """Some data as it is, and without chunks and compression where it is an answer that has them."""
    yield data
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return
    if b"chunked" in head.lower():
        body = b"".join(unchunked(body))
        yield body
    at = body.find(b"\x1f\x8b")
    if at >= 0:
        try:
            yield zlib.decompressobj(31).decompress(body[at:], 1 << 20)
        except zlib.error:
            pass


def unchunked(body):
    while body:
        size, _, body = body.partition(b"\r\n")
        try:
            length = int(size.split(b";")[0], 16)
        except ValueError:
            return
        yield body[:length]
        body = body[length + 2 :]


def look(name, data, whole=4_096):
    """Keeps what looks like a secret, and the beginning of everything."""
    for view in views(data):
        for place in found(view):
            keep(f"found-{name}", place)
        keep(name, view[:whole])


def read(path, length=8 << 20):
    """The beginning of a file, without ever waiting for more of it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        pieces = []
        while length > 0:
            piece = os.read(descriptor, min(length, 1 << 20))
            if not piece:
                break
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def attempt(name, act, *arguments):
    """Makes one attempt; whatever comes of it goes into the report."""
    try:
        outcome = act(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # noqa: B902 - a refusal is what is expected here
        last = traceback.extract_tb(problem.__traceback__)[-1]
        outcome = f"{type(problem).__name__}: {problem} at line {last.lineno}"
    if isinstance(outcome, bytes):
        look(name, outcome, 65_536)
        outcome = f"{len(outcome)} bytes"
    keep("outcomes", f"{name}: {outcome!r}")
    return outcome


def later(name, act, *arguments):
    """An attempt that is made beside others."""
    waiting.append((name, act, *arguments))


def together(dice):
    """Makes the attempts that wait, some at a time; of many a sample, where there is little time."""
    sample = dice.sample(waiting, min(len(waiting), TOLD["at_most"]))
    waiting.clear()
    with ThreadPoolExecutor(max_workers=12) as threads:
        list(threads.map(lambda words: attempt(*words), sample))


def play(once, again):
    """Every attempt of `once`; then, at random, those of `again` until the count or the time is up."""
    seed, rounds, seconds = (int(word) for word in sys.argv[1:4])
    dice = random.Random(seed)
    for act in once:
        begun = time.monotonic()
        attempt(act.__name__, act)
        together(dice)
        keep("times", f"{act.__name__}: {time.monotonic() - begun:.1f} s")
    end = time.monotonic() + seconds
    played = 0
    while played < rounds and time.monotonic() < end:
        act = dice.choice(again)
        attempt(f"again-{act.__name__}", act, dice)
        played += 1
    print(json.dumps({"script": os.path.basename(sys.argv[0]), "attempts": len(once), "variations": played}))
