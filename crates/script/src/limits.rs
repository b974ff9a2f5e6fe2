//! What a script may use up.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What a script may use up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// From start to end.
    pub time: Duration,
    /// Memory that its values take, in bytes.
    pub memory_bytes: u64,
    /// Work, in units of about ten thousand steps of the engine.
    pub fuel: u64,
    /// Its result as JSON, in bytes.
    pub output_bytes: u64,
    /// Calls of what the host offers.
    pub calls: u32,
}

/// Counts what is used up. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Meter(Rc<Used>);

#[derive(Debug)]
struct Used {
    limits: Limits,
    begun: Instant,
    fuel: Cell<u64>,
    calls: Cell<u32>,
    met: RefCell<Option<String>>,
}

impl Meter {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Rc::new(Used {
            limits,
            begun: Instant::now(),
            fuel: Cell::new(0),
            calls: Cell::new(0),
            met: RefCell::default(),
        }))
    }

    /// The engine asks at intervals whether it should stop.
    pub(crate) fn tick(&self) -> bool {
        let used = &self.0;
        used.fuel.set(used.fuel.get() + 1);
        if used.fuel.get() > used.limits.fuel {
            self.stop(format!(
                "computed more than the {} units of fuel it has",
                used.limits.fuel
            ));
        }
        if used.begun.elapsed() > used.limits.time {
            self.stop(format!("took longer than {} s", used.limits.time.as_secs_f64()));
        }
        used.met.borrow().is_some()
    }

    /// The script calls its host. False: once too often.
    pub(crate) fn call(&self) -> bool {
        let used = &self.0;
        used.calls.set(used.calls.get().saturating_add(1));
        if used.calls.get() > used.limits.calls {
            self.stop(format!("made more than {} calls", used.limits.calls));
        }
        used.met.borrow().is_none()
    }

    fn stop(&self, why: String) {
        self.0.met.borrow_mut().get_or_insert(why);
    }

    /// The limit that was met, as a phrase that goes on from "it".
    pub(crate) fn met(&self) -> Option<String> {
        self.0.met.borrow().clone()
    }
}
