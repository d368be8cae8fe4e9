//! Every statement of the catalogue.

use sqlx::PgConnection;

use super::Product;

/// Active products in declared currencies, in byte order of their stock keeping unit, after one.
pub(super) async fn list(
    connection: &mut PgConnection,
    after: &str,
    limit: i64,
) -> Result<Vec<Product>, sqlx::Error> {
    sqlx::query_as!(
        Product,
        r#"
        select p.sku, p.name, p.unit_price, p.currency, c.minor_units
        from product p
        join currency c on c.code = p.currency
        where p.active and p.sku > $1
        order by p.sku
        limit $2
        "#,
        after,
        limit,
    )
    .fetch_all(connection)
    .await
}
