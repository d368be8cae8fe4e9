-- An invoice and its event from any client that speaks SQL. With psql:
--   psql postgres://… -v invoice_id=… -v payload=<hex> -f shared/outbox/examples/append.sql
\set ON_ERROR_STOP on

-- The event is appended from the row's CTE: no row, no event, and the row is held before the seq is drawn.
with i as (
    insert into invoice (id, version, currency, total) values (:'invoice_id', 1, 'KRW', 9000)
    returning id
)
select messaging.append(
    id => gen_random_uuid(),
    aggregatetype => 'invoice',
    aggregateid => i.id::text,
    type => 'example.invoice.issued',
    topic => 'invoices.v1',
    payload => decode(:'payload', 'hex')
) as seq
from i;
