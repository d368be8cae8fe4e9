-- The ledger of points: what each customer has, what each order did to it, and every single movement.

create table point_account (
    customer_id uuid not null,
    -- May be negative: an earning is taken back even when its points are gone. It then blocks new holds.
    available bigint not null default 0,
    held bigint not null default 0,
    constraint point_account_pkey primary key (customer_id),
    constraint point_account_held_check check (held >= 0)
);

comment on table point_account is
    'Balance per customer: at every commit the sum of the customer''s entries.';

create table point_order (
    order_id uuid not null,
    customer_id uuid not null,
    -- Newest state applied. 0: the row was made to be locked, nothing is applied yet.
    last_version bigint not null default 0,
    -- Newest attempt seen. Its hold is decided once: a hold is never asked again for the same attempt.
    attempt_id uuid,
    earn_rate_bp integer not null default 0,
    held bigint not null default 0,
    spent bigint not null default 0,
    restored bigint not null default 0,
    earned bigint not null default 0,
    constraint point_order_pkey primary key (order_id),
    constraint point_order_held_check check (held >= 0),
    constraint point_order_spent_check check (spent >= 0),
    constraint point_order_restored_check check (restored between 0 and spent),
    constraint point_order_earned_check check (earned >= 0)
);

comment on table point_order is
    'What an order has done to its customer''s points: the targets of the newest state that was applied.';

create table point_entry (
    -- UUIDv7: also the page order of a customer's entries.
    entry_id uuid not null,
    customer_id uuid not null,
    order_id uuid,
    kind text not null,
    -- Order version that caused it; for a hold also the attempt.
    ref text not null,
    -- As the customer sees it: negative leaves, positive comes. An adjustment may be either.
    amount bigint not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint point_entry_pkey primary key (entry_id),
    constraint point_entry_order_kind_ref_key unique (order_id, kind, ref),
    constraint point_entry_kind_check
        check (kind in ('HOLD', 'RELEASE', 'SPEND', 'RESTORE', 'EARN', 'EARN_REVERSAL', 'ADJUST')),
    constraint point_entry_order_check check (order_id is not null or kind = 'ADJUST'),
    constraint point_entry_amount_check check (
        case when kind in ('RELEASE', 'RESTORE', 'EARN') then amount > 0
             when kind in ('HOLD', 'SPEND', 'EARN_REVERSAL') then amount < 0
             else amount <> 0 end
    )
);

comment on table point_entry is
    'The ledger. Available is the sum of all entries but SPEND, which takes from what is held; held is SPEND - HOLD - RELEASE.';

create index point_entry_customer_idx on point_entry (customer_id, entry_id);
