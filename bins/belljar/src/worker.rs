//! `belljar worker`: parses SQL and runs scripts for the control plane, in a process that holds nothing and may do nothing.
//! With a database it reads that one file, and does nothing else either.
//!
//! It gives up its rights before it reads a byte, and works only where it could. Its standard input and output are its parent's
//! pipes; when they close, it ends.

mod confine;

use std::io;
use std::path::PathBuf;

use ::worker::{
    Ask, Checked, Dialect, FetchRequest, FileFailure, FileFault, FileQuery, FileSink, Named, ScriptFailure, ScriptJob,
    SqlRefusal, Work, confess, serve,
};
use anyhow::Context;
use serde_json::Value;

use crate::arguments::WorkerArguments;
use crate::end::End;

/// Does jobs until the parent closes the pipe.
pub(crate) fn worker(arguments: &WorkerArguments) -> anyhow::Result<End> {
    confine::clear_environment()?;
    let confined = match &arguments.database {
        Some(database) => {
            sqlite::warm_up();
            confine::confine_to(database, arguments.seconds)
        }
        None => {
            warm_up();
            confine::confine()
        }
    };
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    if let Err(error) = confined {
        confess(output, &format!("{error:#}")).context("the parent is gone")?;
        return Ok(End::Found);
    }
    let mut jobs = Jobs {
        database: arguments.database.clone(),
    };
    serve(input, output, &mut jobs).context("the parent is gone")?;
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
    let _ = Jobs { database: None }.run_script(job, &mut Nobody);
}

struct Jobs {
    /// The one file that there is.
    database: Option<PathBuf>,
}

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

    fn read_file(&mut self, query: FileQuery, out: &mut dyn FileSink) -> Result<(), FileFailure> {
        let none = || FileFault::Unreadable("this process was started for none".to_owned());
        let database = self.database.as_ref().ok_or_else(none)?;
        sqlite::read(database, &query, out)
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
