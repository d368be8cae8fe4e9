-- The currencies that orders are taken in. What is not declared here is not sold.
create table currency (
    -- ISO 4217 code.
    code text not null,
    -- Digits after the decimal point, as ISO 4217 has them: 0 for KRW, 2 for USD, 3 for KWD. All amounts are integers
    -- of this minor unit.
    minor_units smallint not null,
    -- Points earned by 10,000 minor units of what was paid; fixed in an order when it is confirmed. Points have no
    -- currency of their own: this rate is what one is worth in points. 0 earns nothing.
    earn_rate_bp integer not null,
    constraint currency_pkey primary key (code),
    constraint currency_code_check check (code ~ '^[A-Z]{3}$'),
    constraint currency_minor_units_check check (minor_units between 0 and 4),
    constraint currency_earn_rate_check check (earn_rate_bp between 0 and 10000)
);

-- A won earns 1 %: a point is a won.
insert into currency (code, minor_units, earn_rate_bp) values ('KRW', 0, 100);

-- Not validated: products that are there already stay as they are, and are not sold until their currency is declared.
alter table product
    add constraint product_currency_fkey foreign key (currency) references currency (code) not valid;
