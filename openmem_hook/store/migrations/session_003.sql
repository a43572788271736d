-- Which of the tokenizers that models start with a report was counted by, as characters per token. 0: not recorded.
ALTER TABLE reports ADD COLUMN chars_per_token REAL NOT NULL DEFAULT 0;
