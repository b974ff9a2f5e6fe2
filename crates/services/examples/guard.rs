//! Reads statements and files and runs scripts for tests as `belljar worker` does, but for the confinement. As `guard open` it lets everything through as it
//! is, so that a test sees what the other fences hold alone. As `guard slow` it never has done with a statement that says so.

use std::io;
use std::path::PathBuf;

use serde_json::Value;
use worker::{
    Ask, Checked, Dialect, FetchRequest, FileFailure, FileFault, FileQuery, FileSink, Named, ScriptFailure, ScriptJob,
    SqlRefusal, Work, serve,
};

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let after = words.iter().skip_while(|word| *word != "--database").nth(1);
    let mut guard = Guard {
        is_open: words.get(1).is_some_and(|word| word == "open"),
        is_slow: words.get(1).is_some_and(|word| word == "slow"),
        database: after.map(PathBuf::from),
    };
    serve(io::stdin().lock(), io::stdout().lock(), &mut guard)
}

struct Guard {
    is_open: bool,
    is_slow: bool,
    database: Option<PathBuf>,
}

impl Work for Guard {
    fn check_sql(&mut self, dialect: Dialect, text: &str) -> Result<Checked, SqlRefusal> {
        if self.is_open {
            return Ok(Checked {
                text: text.to_owned(),
                ..Checked::default()
            });
        }
        while self.is_slow && text.contains("never done") {
            std::thread::park();
        }
        let dialect = match dialect {
            Dialect::Postgres => sql::Dialect::Postgres,
            Dialect::MySql => sql::Dialect::MySql,
            Dialect::Snowflake => sql::Dialect::Snowflake,
            Dialect::Sqlite => sql::Dialect::Sqlite,
        };
        let statement = sql::check(dialect, text).map_err(|refusal| SqlRefusal {
            why: refusal.why,
            remedy: refusal.remedy.to_owned(),
        })?;
        let named = |names: Vec<sql::Name>| {
            names
                .iter()
                .map(|name| Named::new(name.schema.as_deref(), &name.name))
                .collect()
        };
        Ok(Checked {
            text: statement.text,
            parameters: statement.parameters,
            relations: named(statement.relations),
            functions: named(statement.functions),
            operators: named(statement.operators),
            types: named(statement.types),
        })
    }

    fn read_file(&mut self, query: FileQuery, out: &mut dyn FileSink) -> Result<(), FileFailure> {
        let none = || FileFault::Unreadable("there is none".to_owned());
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
