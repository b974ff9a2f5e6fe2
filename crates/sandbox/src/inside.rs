//! What a runtime finds in its sandbox, whoever made it.

use std::ffi::CStr;

/// The runtime's own program; mounted read-only, may be executed by everybody inside.
pub const RUNTIME: &str = "/run/belljar-runtime";

/// Its argument when it is started as PID 1.
pub const RUNTIME_ARGUMENT: &str = "pid1";

/// Its second one, where whoever started it gave it the list of system calls: then it looks whether that holds, before anything
/// else, and ends where it does not.
pub const LISTED_ARGUMENT: &str = "listed";

/// Its second one, where nobody could: then it gives the list to itself, and to all that it starts, and looks.
pub const LISTS_ARGUMENT: &str = "lists";

/// What PID 1 calls itself (`/proc/1/comm`) when it has looked, and nobody else before.
pub const LISTED_NAME: &CStr = c"belljar-listed";

/// How PID 1 ends where what the list refuses is not refused.
pub const UNLISTED: u8 = 78;

/// How it ends where rules about bits of an argument were misread.
pub const MISREAD: u8 = 79;

/// The directory that holds the link's socket: mounted read-only, mode 0700, owned by root inside.
pub const LINK_DIRECTORY: &str = "/run/belljar";

/// The socket's name in that directory. It vanishes and comes back when the host agent restarts.
pub const LINK_SOCKET: &str = "link.sock";

/// The socket at which the runtime takes calls of services from the user's processes, while a run may make any.
pub const SERVICES_SOCKET: &str = "/run/belljar-services.sock";

/// The port of 127.0.0.1 at which the runtime lets the user's programs ask models and call services as tools, while a run may.
pub const HARNESS_PORT: u16 = 3129;

/// The session's files: outlive the sandbox.
pub const WORKSPACE: &str = "/workspace";

/// What was made ready for everybody who has the image: repositories, and what was built of them. The user's own, where the
/// image has it.
pub const KNOWLEDGE: &str = "/knowledge";

/// The uid of the user whose processes the tools are; owns the workspace.
pub const USER_ID: u32 = 1000;

/// That user's group.
pub const GROUP_ID: u32 = 1000;
