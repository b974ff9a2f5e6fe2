//! Freezes a future where it stands.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// While it is shut, what it guards is not polled.
#[derive(Default)]
pub(super) struct Gate(Mutex<State>);

#[derive(Default)]
struct State {
    shut: bool,
    waiting: Option<Waker>,
}

impl Gate {
    pub(super) fn shut(&self) {
        self.state(|state| state.shut = true);
    }

    pub(super) fn open(&self) {
        let waiting = self.state(|state| {
            state.shut = false;
            state.waiting.take()
        });
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    pub(super) fn is_shut(&self) -> bool {
        self.state(|state| state.shut)
    }

    pub(super) fn guard(
        self: &Arc<Self>,
        mut program: Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let gate = Arc::clone(self);
        std::future::poll_fn(move |context: &mut Context<'_>| {
            let shut = gate.state(|state| {
                if state.shut {
                    state.waiting = Some(context.waker().clone());
                }
                state.shut
            });
            if shut {
                return Poll::Pending;
            }
            program.as_mut().poll(context)
        })
    }

    fn state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
