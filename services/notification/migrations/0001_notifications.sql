-- What customers are told: one row per event, sent in `seq` order per order.

create table notification (
    notification_id uuid not null,
    -- Order of sending within an order. CACHE 1: with more, two sessions would draw blocks of their own.
    seq bigint generated always as identity (cache 1),
    -- The event that caused it: one event, one notification, whatever is delivered again.
    message_id uuid not null,
    order_id uuid not null,
    customer_id uuid not null,
    kind text not null,
    channel text not null default 'log',
    -- Written once, when the event is consumed: what was sent can be read later. No personal data.
    body text not null,
    -- Of the span that consumed the event; the sending is its child.
    traceparent text,
    tracestate text,
    created_at timestamptz not null default clock_timestamp(),
    -- Not tried before; moved by failures only.
    due_at timestamptz not null default clock_timestamp(),
    sent_at timestamptz,
    attempts integer not null default 0,
    last_error text,
    constraint notification_pkey primary key (notification_id),
    constraint notification_seq_key unique (seq),
    constraint notification_message_id_key unique (message_id)
);

comment on table notification is
    'One row per event that a customer is told of; within an order never sent before an earlier unsent one.';

-- The work list of the senders: the oldest unsent row of each order.
create index notification_unsent_idx on notification (order_id, seq) where sent_at is null;
-- Age of the oldest unsent row.
create index notification_unsent_created_idx on notification (created_at) where sent_at is null;
create index notification_order_idx on notification (order_id, seq);
