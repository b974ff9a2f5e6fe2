-- What `belljar service test warehouse` asks: a small shop, in SQLite.
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers (id), cents INTEGER, placed_at TEXT);
CREATE VIEW revenue AS SELECT substr(placed_at, 1, 7) AS month, sum(cents) AS cents FROM orders GROUP BY 1;
INSERT INTO customers VALUES (1, 'Ada', 'GB'), (2, 'Grace', 'US'), (3, 'Edsger', NULL);
INSERT INTO orders VALUES (1, 1, 1250, '2026-01-31'), (2, 2, 900, '2026-02-01'), (9007199254740993, 2, NULL, '2026-02-28');
