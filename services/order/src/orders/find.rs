//! Reading one order.

use uuid::Uuid;
use waybill_service::auth::{Principal, Scope};

use super::{Error, Order, Orders, store};

/// An order by its id as text. A customer sees only their own; operators and services see all. What is not an id
/// is the id of no order.
pub(super) async fn find(orders: &Orders, principal: Principal, id: &str) -> Result<Order, Error> {
    let id = Uuid::try_parse(id).map_err(|_| Error::NotFound)?;
    let customer = match principal.scope {
        Scope::Customer => Some(principal.customer),
        Scope::Operator | Scope::Service => None,
    };
    let mut connection = orders.gate.acquire().await?;
    store::find(&mut connection, id, customer).await?.ok_or(Error::NotFound)
}
