//! Schema `messaging` is shared by three crates, each with migrations of its own.

use sqlx::migrate::Migrator;
use waybill_testkit::Database;

fn migrators() -> [Migrator; 3] {
    [waybill_outbox::migrator(), waybill_consumer::migrator(), waybill_task::migrator()]
}

#[tokio::test]
async fn the_crates_of_schema_messaging_migrate_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let all = migrators();
        let database = Database::create(&order.map(|n| migrators().into_iter().nth(n).expect("three"))).await;
        for migrator in &all {
            migrator.run(&database.pool).await.unwrap_or_else(|error| panic!("{order:?} again: {error}"));
        }
        let now: bool = sqlx::query_scalar("select messaging.now() <= clock_timestamp()")
            .fetch_one(&database.pool)
            .await
            .expect("clock");
        assert!(now);
    }
}
