//! `belljar worker`: parses SQL and runs scripts for the control plane, in a process that holds nothing and may do nothing.
//!
//! It gives up its rights before it reads a byte, and works only where it could. Its standard input and output are its parent's
//! pipes; when they close, it ends.

mod confine;

use std::io;

use ::worker::{
    Ask, Checked, Dialect, FetchRequest, Named, ScriptFailure, ScriptJob, SqlRefusal, Work, confess, serve,
};
use anyhow::Context;
use serde_json::Value;

use crate::end::End;

/// Does jobs until the parent closes the pipe.
pub(crate) fn worker() -> anyhow::Result<End> {
    confine::clear_environment()?;
    warm_up();
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    if let Err(error) = confine::confine() {
        confess(output, &format!("{error:#}")).context("the parent is gone")?;
        return Ok(End::Found);
    }
    serve(input, output, &mut Jobs).context("the parent is gone")?;
    Ok(End::Done)
}

/// What is read once from files, such as the time zone, is read while that is possible. Both texts are ours.
fn warm_up() {
    let _ = sql::check(sql::Dialect::Postgres, "SELECT 1");
    let job = ScriptJob {
        source: "return new Date(0).getTimezoneOffset()".to_owned(),
        arguments: Value::Null,
        functions: Vec::new(),
        limits: ::worker::ScriptLimits::default(),
    };
    let _ = Jobs.run_script(job, &mut Nobody);
}

struct Jobs;

impl Work for Jobs {
    fn check_sql(&mut self, dialect: Dialect, text: &str) -> Result<Checked, SqlRefusal> {
        let dialect = match dialect {
            Dialect::Postgres => sql::Dialect::Postgres,
            Dialect::MySql => sql::Dialect::MySql,
            Dialect::Snowflake => sql::Dialect::Snowflake,
            Dialect::Sqlite => sql::Dialect::Sqlite,
        };
        let sql::Statement {
            text,
            parameters,
            relations,
            functions,
            operators,
            types,
        } = sql::check(dialect, text).map_err(|sql::Refusal { why, remedy }| SqlRefusal {
            why,
            remedy: remedy.to_owned(),
        })?;
        Ok(Checked {
            text,
            parameters,
            relations: named(relations),
            functions: named(functions),
            operators: named(operators),
            types: named(types),
        })
    }

    fn run_script(&mut self, job: ScriptJob, ask: &mut dyn Ask) -> Result<Value, ScriptFailure> {
        let limits = script::Limits {
            time: job.limits.time,
            memory_bytes: job.limits.memory_bytes,
            fuel: job.limits.fuel,
            output_bytes: job.limits.output_bytes,
            calls: job.limits.calls,
        };
        let job = script::Job {
            source: job.source,
            arguments: job.arguments,
            functions: job.functions,
            limits,
        };
        script::run(&job, &mut Parent(ask)).map_err(|failure| match failure {
            script::Failure::Threw { message, line } => ScriptFailure::Threw { message, line },
            script::Failure::Limit(why) => ScriptFailure::Limit(why),
            script::Failure::Abandoned(error) => ScriptFailure::Abandoned(error),
        })
    }
}

fn named(names: Vec<sql::Name>) -> Vec<Named> {
    let names = names.into_iter();
    names.map(|sql::Name { schema, name }| Named { schema, name }).collect()
}

/// The parent, as a script's host.
struct Parent<'a>(&'a mut dyn Ask);

impl script::Host for Parent<'_> {
    fn call(&mut self, call: u32, name: &str, arguments: Vec<Value>) -> io::Result<()> {
        let name = name.to_owned();
        self.0.call(call, FetchRequest { name, arguments })
    }

    fn answer(&mut self) -> io::Result<(u32, Result<Value, String>)> {
        self.0.answer()
    }
}

/// For a script that calls nobody.
struct Nobody;

impl Ask for Nobody {
    fn call(&mut self, _call: u32, _request: FetchRequest) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn answer(&mut self) -> io::Result<(u32, Result<Value, String>)> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
