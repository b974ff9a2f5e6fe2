//! JavaScript for glue between calls.
//!
//! A script is the body of an asynchronous function. It sees its arguments as `args`, computes, and calls what its host
//! offers it; there is nothing else: no file, no network, no timer, no module, no code made of texts. It has a bound for
//! memory, for work and for time. What it returns is JSON.
//!
//! The engine is C code that reads what an untrusted party wrote, so this crate belongs into a process that holds nothing.

mod failure;
mod limits;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use rquickjs::context::{EvalOptions, intrinsic};
use rquickjs::{Array, Context, Ctx, Exception, Function, Promise, Runtime, Value as Js};
use serde_json::Value;

use failure::{caught, why};
use limits::Meter;

pub use failure::Failure;
pub use limits::Limits;

/// The name of a script in its own stack traces.
const FILE: &str = "script";

/// What a script may use of the stack, in bytes.
const STACK: usize = 512 << 10;

/// What stands around a script.
const PRELUDE: &str = include_str!("prelude.js");

/// A script to run once.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    /// The body of an asynchronous function.
    pub source: String,
    /// What `args` is.
    pub arguments: Value,
    /// The names of the functions that the host offers.
    pub functions: Vec<String>,
    /// What it may use up.
    pub limits: Limits,
}

/// Answers calls.
pub trait Host {
    /// Begins a call. Calls count from 0.
    ///
    /// # Errors
    /// The host is gone.
    fn call(&mut self, call: u32, name: &str, arguments: Vec<Value>) -> io::Result<()>;

    /// Waits until any of the calls is done; what failed is thrown in the script.
    ///
    /// # Errors
    /// The host is gone.
    fn answer(&mut self) -> io::Result<(u32, Result<Value, String>)>;
}

/// Runs a script to its end.
///
/// # Errors
/// [`Failure`]: it threw, met a limit, or lost its host.
pub fn run(job: &Job, host: &mut dyn Host) -> Result<Value, Failure> {
    if let Some(name) = job.functions.iter().find(|name| !is_identifier(name)) {
        return Err(Failure::threw(format!("{name:?} cannot be the name of a function")));
    }
    let meter = Meter::new(job.limits);
    let runtime = Runtime::new().map_err(|_| Failure::memory(job.limits))?;
    runtime.set_memory_limit(usize::try_from(job.limits.memory_bytes).unwrap_or(usize::MAX));
    runtime.set_max_stack_size(STACK);
    let handler = meter.clone();
    runtime.set_interrupt_handler(Some(Box::new(move || handler.tick())));
    let context = Context::builder()
        .with::<intrinsic::Date>()
        .with::<intrinsic::Eval>()
        .with::<intrinsic::RegExpCompiler>()
        .with::<intrinsic::RegExp>()
        .with::<intrinsic::Json>()
        .with::<intrinsic::MapSet>()
        .with::<intrinsic::TypedArrays>()
        .with::<intrinsic::Promise>()
        .build(&runtime)
        .map_err(|_| Failure::memory(job.limits))?;
    context.with(|ctx| {
        let ran = perform(&ctx, job, host, &meter);
        // Whatever it threw on the way out: the limit it met says more.
        match meter.met() {
            Some(limit) => Err(Failure::Limit(limit)),
            None => ran,
        }
    })
}

/// Calls that the script made and the host has not been told of.
type Calls = Rc<RefCell<Vec<(std::string::String, std::string::String)>>>;

fn perform(ctx: &Ctx<'_>, job: &Job, host: &mut dyn Host, meter: &Meter) -> Result<Value, Failure> {
    let failed = |error| why(caught(ctx, error), job.limits);
    let calls = Calls::default();
    let (offer, settle) = surroundings(ctx, &calls, meter).map_err(failed)?;
    let mut given: Vec<Js<'_>> = vec![ctx.json_parse(job.arguments.to_string()).map_err(failed)?];
    for name in &job.functions {
        given.push(offer.call((name.as_str(),)).map_err(failed)?);
    }
    let names: String = job.functions.iter().map(|name| format!(", {name}")).collect();
    // All of it on one line with the script's first, so that lines count as its author does.
    let source = format!("(async (args{names}) => {{{}\n}})", job.source);
    let function: Function<'_> = ctx.eval_with_options(source, options(FILE)).map_err(failed)?;
    let mut arguments = rquickjs::function::Args::new(ctx.clone(), given.len());
    arguments.push_args(given).map_err(failed)?;
    let promise: Promise<'_> = function.call_arg(arguments).map_err(failed)?;

    let (mut made, mut answered) = (0, 0);
    loop {
        while meter.met().is_none() && ctx.execute_pending_job() {}
        if meter.met().is_some() {
            // Said by whoever called.
            return Ok(Value::Null);
        }
        if let Some(result) = promise.result::<Js<'_>>() {
            return returned(ctx, result.map_err(failed)?, job.limits);
        }
        for (name, arguments) in calls.take() {
            let arguments = serde_json::from_str(&arguments)
                .map_err(|_| Failure::threw(format!("the arguments of {name} are nested too deeply")))?;
            host.call(made, &name, arguments).map_err(Failure::Abandoned)?;
            made += 1;
        }
        if made == answered {
            return Err(Failure::threw("it waits for something that never comes"));
        }
        let (call, answer) = host.answer().map_err(Failure::Abandoned)?;
        answered += 1;
        let (good, answer) = match answer {
            Ok(value) => (true, ctx.json_parse(value.to_string())),
            Err(message) => (
                false,
                Exception::from_message(ctx.clone(), &message).map(|error| error.into_object().into_value()),
            ),
        };
        let answer = answer.map_err(failed)?;
        settle.call::<_, ()>((call, good, answer)).map_err(failed)?;
    }
}

/// Makes what stands around a script: what offers a function by its name, and what settles a call.
fn surroundings<'js>(ctx: &Ctx<'js>, calls: &Calls, meter: &Meter) -> rquickjs::Result<(Function<'js>, Function<'js>)> {
    let (calls, meter) = (Rc::clone(calls), meter.clone());
    let send = Function::new(ctx.clone(), move |name: String, arguments: String| {
        if meter.call() {
            calls.borrow_mut().push((name, arguments));
        }
    })?;
    let prelude: Function<'js> = ctx.eval_with_options(PRELUDE, options("belljar"))?;
    let made: Array<'js> = prelude.call((send,))?;
    Ok((made.get(0)?, made.get(1)?))
}

fn options(file: &str) -> EvalOptions {
    let mut options = EvalOptions::default();
    options.filename = Some(file.to_owned());
    options
}

fn returned<'js>(ctx: &Ctx<'js>, value: Js<'js>, limits: Limits) -> Result<Value, Failure> {
    let failed = |error| why(caught(ctx, error), limits);
    let Some(text) = ctx.json_stringify(value).map_err(failed)? else {
        return Ok(Value::Null);
    };
    let text = text.to_string().map_err(failed)?;
    if text.len() as u64 > limits.output_bytes {
        return Err(Failure::Limit(format!(
            "returned {} bytes of JSON, and may return {}",
            text.len(),
            limits.output_bytes
        )));
    }
    serde_json::from_str(&text).map_err(|_| Failure::threw("what it returns is nested too deeply"))
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric())
}
