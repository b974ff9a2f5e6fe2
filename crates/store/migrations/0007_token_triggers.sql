-- The name under which the prompts of a token count: what its label was where an admin made it, else that of the token that made it.
ALTER TABLE tokens ADD COLUMN trigger_name TEXT NOT NULL DEFAULT '';
UPDATE tokens SET trigger_name = label;
