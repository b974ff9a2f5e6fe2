//! The keys of scopes, and of who has which.

use super::{Key, Kind, Section, unset};

/// What a scope says; the same for roles and doors.
const SCOPE: &[Key] = &[
    unset(
        "services",
        Kind::Rules,
        "[\"crm.*\", \"support.getIssue\"]",
        "Methods of services. A star stays in its part: `crm.*` is every method of crm, `**` every method there is. A list is all that is allowed.",
    ),
    unset(
        "tools",
        Kind::Verdicts,
        "{ read = \"allow\", exec = \"allow\", safebash = \"deny\" }",
        "Tools: read, write, edit, exec, safebash, skill; true or \"allow\", \"ask\", false or \"deny\". Where any is allowed, those that are not named are denied.",
    ),
    unset(
        "skills",
        Kind::Rules,
        "[\"data-*\", \"crm\"]",
        "Skills; written as services are.",
    ),
    unset(
        "egress",
        Kind::Rules,
        "[\"api.example.com\", \"*.example.org:443\"]",
        "Hosts that connections may leave for, where a rule of [egress.rules.*] lets them out; ports 80 and 443 where none is said. `*.` is one more part of a name, `**.` one or more.",
    ),
    unset(
        "models",
        Kind::Rules,
        "[\"large\"]",
        "Models, by their names in this file; written as services are.",
    ),
    unset(
        "limits.steps",
        Kind::Whole(1, 1_000_000),
        "20",
        "Model calls of a run. Of several limits the lowest counts.",
    ),
    unset(
        "limits.wall_seconds",
        Kind::Whole(1, 1_000_000_000),
        "600",
        "Seconds of a run, waiting not counted.",
    ),
    unset(
        "limits.tool_seconds",
        Kind::Whole(1, 1_000_000_000),
        "60",
        "Seconds of one tool call.",
    ),
    unset(
        "limits.output_bytes",
        Kind::Whole(1, 1_000_000_000),
        "10000",
        "Bytes of one tool's answer that the model is shown.",
    ),
    unset("limits.run_dollars", Kind::Dollars, "0.50", "What a run may cost."),
    unset(
        "limits.session_dollars",
        Kind::Dollars,
        "5.00",
        "What a session may cost.",
    ),
    unset(
        "limits.user_dollars",
        Kind::Dollars,
        "10.00",
        "What the session's user may have spent in a day (UTC) for it to go on.",
    ),
];

/// `[roles.NAME]`
pub(super) const ROLES: Section = Section {
    name: "roles.*",
    whole: true,
    about: "What people of a role may do: [roles.analyst] and so on. A key that is left out is as for everybody; an empty list is nothing. [roles.everybody] is for people without a role: every tool, skill and model, no service and no way out, where it is not written.",
    keys: SCOPE,
};

/// `[doors.NAME]`
pub(super) const DOORS: Section = Section {
    name: "doors.*",
    whole: true,
    about: "The ceiling of a door, whoever comes through it: [doors.api], [doors.cli], [doors.slack], [doors.webhook], [doors.schedule]. A session keeps the ceiling of the door by which it began.",
    keys: SCOPE,
};

/// `[people.NAME]`
pub(super) const PEOPLE: Section = Section {
    name: "people.*",
    whole: true,
    about: "The roles of a user of that name.",
    keys: &[unset(
        "roles",
        Kind::Names,
        "[\"analyst\"]",
        "Names of roles. What one of them allows is allowed, what one of them denies is denied.",
    )],
};

/// `[groups.NAME]`
pub(super) const GROUPS: Section = Section {
    name: "groups.*",
    whole: true,
    about: "Users who have roles together.",
    keys: &[
        unset("people", Kind::Names, "[\"ada\", \"grace\"]", "Their names."),
        unset(
            "roles",
            Kind::Names,
            "[\"analyst\"]",
            "Names of roles that they have beside their own.",
        ),
    ],
};
