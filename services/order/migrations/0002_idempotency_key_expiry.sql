-- The purge of idempotency keys reads the oldest first; without the index each step would read the whole table.
create index idempotency_key_expires_idx on idempotency_key (expires_at);
