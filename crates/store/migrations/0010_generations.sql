-- Generations of images: what a refresh of /knowledge made of one, or is making. `recipe` is what it was made by, `base` the
-- image that it began with, `number` is greater than that of every older one of the image, `parent` the one that it was made from; `session` is whose disk its sandbox has; `state` is
-- wanted, building, ready, failed or gone (it was collected).
CREATE TABLE generations (
    id TEXT PRIMARY KEY,
    number BIGINT NOT NULL,
    image TEXT NOT NULL,
    state TEXT NOT NULL,
    asked BIGINT NOT NULL,
    recipe TEXT,
    base TEXT,
    parent TEXT,
    session_id TEXT,
    attempts BIGINT NOT NULL DEFAULT 0,
    holder TEXT,
    lease_until BIGINT,
    begun BIGINT,
    ended BIGINT,
    digest TEXT,
    error TEXT
);
CREATE UNIQUE INDEX generations_by_image ON generations (image, number);
-- One is built at a time, and one more may be wanted meanwhile.
CREATE UNIQUE INDEX generations_open ON generations (image, state) WHERE ended IS NULL;

-- The image that the session's disk began with, and that of the disk that a snapshot keeps.
ALTER TABLE sessions ADD COLUMN image TEXT;
ALTER TABLE snapshots ADD COLUMN image TEXT;
