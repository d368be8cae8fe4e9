-- Orders, their lines, the catalogue they are priced from, and the answers kept for idempotency keys.
-- Written together with `messaging.outbox`, whose migrations run beside these in the same database.

-- What can be ordered. Lines copy the price, so a later change here never touches a placed order.
create table product (
    -- Collation "C": pages are in byte order, whatever the locale of the cluster.
    sku text collate "C" not null,
    name text not null,
    -- In the currency's minor unit. Bounded so that no order can overflow a bigint.
    unit_price bigint not null,
    currency text not null,
    -- An inactive product stays for its history and cannot be ordered.
    active boolean not null default true,
    constraint product_pkey primary key (sku),
    constraint product_sku_check check (sku ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$'),
    constraint product_unit_price_check check (unit_price between 0 and 1000000000000),
    constraint product_currency_check check (currency ~ '^[A-Z]{3}$')
);

create table orders (
    -- UUIDv7, made by the service.
    id uuid not null,
    customer_id uuid not null,
    status text not null,
    -- Raised by every event, also by one that leaves the status as it is.
    version bigint not null,
    currency text not null,
    -- Sum of quantity times unit price; like all amounts in the currency's minor unit.
    total bigint not null,
    payment_method text not null,
    -- Points that paid for a part of the order, money received, money given back.
    points_used bigint not null default 0,
    paid bigint not null default 0,
    refunded bigint not null default 0,
    -- Amount on which points are earned, and the rate in basis points; both 0 until the order is confirmed.
    earn_base bigint not null default 0,
    earn_rate_bp integer not null default 0,
    -- Why it ended as it did.
    reason text,
    expires_at timestamptz,
    -- The database's clock, never the service's.
    created_at timestamptz not null,
    updated_at timestamptz not null,
    constraint orders_pkey primary key (id),
    constraint orders_status_check check (status in (
        'PENDING_PAYMENT', 'PAYMENT_IN_PROGRESS', 'CONFIRMED', 'CANCEL_IN_PROGRESS', 'CANCELLED', 'EXPIRED')),
    constraint orders_version_check check (version >= 1),
    constraint orders_currency_check check (currency ~ '^[A-Z]{3}$'),
    constraint orders_payment_method_check check (payment_method in ('CARD', 'ON_DELIVERY')),
    constraint orders_amounts_check check (
        total >= 0 and points_used between 0 and total and paid >= 0 and refunded >= 0 and earn_base >= 0),
    constraint orders_earn_rate_check check (earn_rate_bp between 0 and 10000),
    -- What waits for payment must be able to expire, else it would wait for ever.
    constraint orders_expiry_check check (status <> 'PENDING_PAYMENT' or expires_at is not null)
);

-- A customer's orders, newest first: read backwards from a (created_at, id).
create index orders_customer_created_idx on orders (customer_id, created_at, id);

create table order_item (
    order_id uuid not null,
    -- Place in the order as the customer gave it, from 1.
    line smallint not null,
    -- No foreign key to product: its check would lock the row of a popular product in every order.
    sku text not null,
    quantity integer not null,
    unit_price bigint not null,
    constraint order_item_pkey primary key (order_id, line),
    constraint order_item_order_fkey foreign key (order_id) references orders (id),
    constraint order_item_quantity_check check (quantity >= 1),
    constraint order_item_unit_price_check check (unit_price >= 0)
);

-- One row per accepted request, written in the transaction of its effect together with the final answer: there
-- is no "in progress" row that a crash could leave behind. Refusals store nothing.
create table idempotency_key (
    -- `sub` of the token.
    principal uuid not null,
    method text collate "C" not null,
    -- Route template, not the path.
    route text collate "C" not null,
    key text collate "C" not null,
    -- SHA-256 of the typed request.
    fingerprint bytea not null,
    status smallint not null,
    location text,
    body bytea not null,
    created_at timestamptz not null,
    -- From then on the key counts as new, even while the row is still there.
    expires_at timestamptz not null,
    constraint idempotency_key_pkey primary key (principal, method, route, key),
    constraint idempotency_key_key_check check (length(key) between 1 and 255),
    constraint idempotency_key_fingerprint_check check (octet_length(fingerprint) = 32),
    constraint idempotency_key_status_check check (status between 200 and 299)
);
