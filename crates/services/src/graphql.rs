//! What a GraphQL document does.

use apollo_parser::Parser;
use apollo_parser::cst::{Definition, OperationDefinition};

/// The most tokens and the deepest nesting of a document.
const TOKENS: usize = 20_000;
const DEPTH: usize = 100;

/// What a document does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// It reads.
    Query,
    /// It changes something.
    Mutation,
    /// It listens.
    Subscription,
}

/// Why nobody can say what a document does.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unparsed {
    /// It is no GraphQL.
    #[error("it is no GraphQL: {message} (at byte {at})")]
    Syntax {
        /// What the parser says.
        message: String,
        /// Where.
        at: usize,
    },
    /// It does not hold exactly one operation, so a name beside it would choose what happens.
    #[error("it holds {0} operations; write one, with its fragments")]
    Operations(usize),
    /// It defines types.
    #[error("it defines types; write one query or mutation, with its fragments")]
    Types,
}

/// What a document of exactly one operation does.
pub(crate) fn operation(document: &str) -> Result<Operation, Unparsed> {
    let tree = Parser::new(document).token_limit(TOKENS).recursion_limit(DEPTH).parse();
    if let Some(error) = tree.errors().next() {
        return Err(Unparsed::Syntax {
            message: error.message().to_owned(),
            at: error.index(),
        });
    }
    let mut operations = Vec::new();
    for definition in tree.document().definitions() {
        match definition {
            Definition::OperationDefinition(operation) => operations.push(kind(&operation)),
            Definition::FragmentDefinition(_) => {}
            _ => return Err(Unparsed::Types),
        }
    }
    match operations[..] {
        [operation] => Ok(operation),
        _ => Err(Unparsed::Operations(operations.len())),
    }
}

fn kind(operation: &OperationDefinition) -> Operation {
    match operation.operation_type() {
        Some(kind) if kind.mutation_token().is_some() => Operation::Mutation,
        Some(kind) if kind.subscription_token().is_some() => Operation::Subscription,
        // A bare selection is a query.
        _ => Operation::Query,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threat_075_the_operation_is_parsed_not_guessed() {
        use Operation::{Mutation, Query, Subscription};
        for (document, expected) in [
            ("{ viewer { id } }", Query),
            ("query Mutation { mutation { id } }", Query),
            (
                "# mutation\nquery ($a: Int = 1) { issues(first: $a) { nodes { ...F } } } fragment F on Issue { id }",
                Query,
            ),
            ("\u{feff}mutation { deleteAll }", Mutation),
            ("fragment F on A { id }\n,,,mutation M { x { ...F } }", Mutation),
            ("#query\rmutation { deleteAll }", Mutation),
            ("subscription { x }", Subscription),
        ] {
            assert_eq!(operation(document), Ok(expected), "{document}");
        }
    }

    #[test]
    fn threat_075_a_document_that_leaves_a_choice_is_refused() {
        assert_eq!(
            operation("query A { a } mutation B { b }"),
            Err(Unparsed::Operations(2))
        );
        assert_eq!(operation("fragment F on A { id }"), Err(Unparsed::Operations(0)));
        assert_eq!(operation("{ a } type B { c: Int }"), Err(Unparsed::Types));
        for bad in ["", "query {", "MUTATION { x }", "query { a } }", "mutation"] {
            assert!(operation(bad).is_err(), "{bad}");
        }
        let deep = format!("{}a{}", "{a".repeat(5_000), "}".repeat(5_000));
        assert!(operation(&deep).is_err());
    }
}
