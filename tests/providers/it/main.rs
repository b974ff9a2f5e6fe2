//! Real sandboxes, by real OCI runtimes, as root.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

/// Runs each of these with each kind of maker that this machine has.
macro_rules! on_each {
    ($($name:ident),* $(,)?) => {
        mod by_runc {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name($crate::world::By::RUNC).await;
                }
            )*
        }
        mod by_docker {
            $(
                #[tokio::test]
                async fn $name() {
                    if $crate::world::By::Docker.is_here() {
                        super::$name($crate::world::By::Docker).await;
                    }
                }
            )*
        }
    };
}

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
mod world;
