//! Real sandboxes, by real OCI runtimes and Docker's engine, as root.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

/// Runs each of these with each kind of maker that this machine has.
macro_rules! on_each {
    ($($name:ident),* $(,)?) => {
        on_each!(by_runc, RUNC: $($name),*);
        on_each!(by_crun, CRUN: $($name),*);
        on_each!(by_docker, Docker: $($name),*);
        on_each!(by_youki, YOUKI: $($name),*);
        on_each!(by_runsc, RUNSC: $($name),*);
    };
    ($module:ident, $by:ident: $($name:ident),*) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $name() {
                    if $crate::world::By::$by.is_here() {
                        super::$name($crate::world::By::$by).await;
                    }
                }
            )*
        }
    };
}

mod asleep;
mod bombs;
mod conforms;
mod disks;
mod escapes;
mod images;
mod isolation;
mod killed;
mod leftovers;
mod limits;
mod network;
mod system_calls;
mod volume;
mod world;
