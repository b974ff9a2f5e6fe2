-- `behind` is since when the disk of a workspace may have what is kept nowhere else, and null where it has nothing so;
-- `unkept_told` says that its owner was told that its files cannot be kept, and not yet that they are again.
ALTER TABLE workspaces ADD COLUMN behind BIGINT;
ALTER TABLE workspaces ADD COLUMN unkept_told BIGINT NOT NULL DEFAULT 0;
CREATE INDEX workspaces_behind ON workspaces (behind) WHERE behind IS NOT NULL;
