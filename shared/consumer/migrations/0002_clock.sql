-- The clock by which rows age. The outbox brings the same function; in a database without one it is made here.
do $$
begin
    if to_regprocedure('messaging.now()') is null then
        create function messaging.now() returns timestamptz
        language sql volatile
        as 'select clock_timestamp()';
        comment on function messaging.now() is
            'Clock of leases, due times and retention; replaced in tests to step the clock.';
    end if;
end
$$;
