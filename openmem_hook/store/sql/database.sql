-- database: session

-- name: checkpoint
PRAGMA wal_checkpoint(PASSIVE);

-- name: truncate_log
PRAGMA wal_checkpoint(TRUNCATE);
