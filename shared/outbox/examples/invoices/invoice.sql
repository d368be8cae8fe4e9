-- The aggregate's own table. A service has this in its own migrations.
create table if not exists invoice (
    id uuid not null,
    version bigint not null,
    currency text not null,
    total bigint not null,
    paid bigint not null default 0,
    constraint invoice_pkey primary key (id),
    constraint invoice_paid_check check (paid between 0 and total)
);
