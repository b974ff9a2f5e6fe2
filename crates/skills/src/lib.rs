//! Skills: folders with a `SKILL.md` that tell the agent how to do a job it may be given.
//!
//! A model is first shown the catalogue only, one line a skill and always in the same order; a skill's body follows when
//! the model asks for it, and its other files when the body names them. The format is that of agentskills.io. Reading is
//! lenient (a skill whose author forgot a quote still loads), checking is strict ([`check`] says what should be mended).

mod catalogue;
mod check;
mod frontmatter;
mod load;

pub use catalogue::catalogue;
pub use check::{Finding, check};
pub use frontmatter::{Frontmatter, FrontmatterError};
pub use load::{LoadError, MAX_SKILL_BYTES, Skill, load, load_folder};
