//! Every statement of the catalogue.

use sqlx::PgConnection;

use super::Product;

/// Active products in byte order of their stock keeping unit, after one.
pub(super) async fn list(
    connection: &mut PgConnection,
    after: &str,
    limit: i64,
) -> Result<Vec<Product>, sqlx::Error> {
    sqlx::query_as!(
        Product,
        r#"
        select sku, name, unit_price, currency
        from product
        where active and sku > $1
        order by sku
        limit $2
        "#,
        after,
        limit,
    )
    .fetch_all(connection)
    .await
}
