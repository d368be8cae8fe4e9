use std::collections::HashSet;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::app::{TestApp, order, order_with};

/// Follows `Link` to the end; gives all orders and the number of pages.
async fn all(app: &TestApp, first: &str) -> (Vec<Value>, usize) {
    let (mut orders, mut pages, mut next) = (Vec::new(), 0, Some(first.to_owned()));
    while let Some(path) = next {
        let answer = app.get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let page = answer.json();
        orders.extend(page["items"].as_array().expect("items").clone());
        pages += 1;
        let link = answer.header("link");
        assert_eq!(link.is_some(), page["nextCursor"].is_string());
        next = link.map(|link| {
            let (target, rel) = link.split_once('>').expect("a target");
            assert_eq!(rel, "; rel=\"next\"");
            target.trim_start_matches('<').to_owned()
        });
    }
    (orders, pages)
}

fn ids(orders: &[Value]) -> Vec<&str> {
    orders.iter().map(|order| order["id"].as_str().expect("an id")).collect()
}

#[tokio::test]
async fn pages_have_neither_gaps_nor_duplicates_when_times_are_equal() {
    let app = TestApp::start().await;
    for n in 0..25 {
        app.place(&format!("k{n}"), &order()).await.placed();
    }
    // Ten share one microsecond, the rest another; ids then decide.
    app.execute(
        "update orders set created_at = case when id in (select id from orders order by id limit 10)
            then '2026-01-01T00:00:00.000001Z'::timestamptz else '2026-01-01T00:00:00.000002Z' end",
    )
    .await;
    let expected: Vec<Uuid> = sqlx::query_scalar("select id from orders order by created_at desc, id desc")
        .fetch_all(&app.database.pool)
        .await
        .unwrap();
    let expected: Vec<String> = expected.iter().map(Uuid::to_string).collect();
    for (limit, pages) in [(1, 25), (4, 7), (5, 5), (20, 2), (100, 1)] {
        let (orders, seen) = all(&app, &format!("/v1/orders?limit={limit}")).await;
        assert_eq!((ids(&orders), seen), (expected.iter().map(String::as_str).collect(), pages), "{limit}");
    }
    let (orders, pages) = all(&app, "/v1/orders").await;
    assert_eq!((orders.len(), pages), (25, 2));
}

#[tokio::test]
async fn an_order_placed_between_two_pages_moves_nothing() {
    let app = TestApp::start().await;
    for n in 0..6 {
        app.place(&format!("k{n}"), &order()).await.placed();
    }
    let first = app.get("/v1/orders?limit=3").await.json();
    app.place("later", &order()).await.placed();
    let next = format!("/v1/orders?limit=3&cursor={}", first["nextCursor"].as_str().unwrap());
    let (rest, _) = all(&app, &next).await;
    let seen: HashSet<&str> = ids(first["items"].as_array().unwrap()).into_iter().chain(ids(&rest)).collect();
    assert_eq!((seen.len(), rest.len()), (6, 3));
}

#[tokio::test]
async fn filters_hold_over_all_pages() {
    let app = TestApp::start().await;
    for n in 0..9 {
        let method = if n % 3 == 0 { "CARD" } else { "ON_DELIVERY" };
        app.place(&format!("k{n}"), &order_with(json!({"paymentMethod": method}))).await.placed();
    }
    app.execute(
        "update orders set created_at = '2026-01-01Z'::timestamptz + interval '1 hour' * (o.n - 1)
         from (select id, row_number() over (order by id) as n from orders) o where o.id = orders.id",
    )
    .await;
    let count = async |query: &str| all(&app, &format!("/v1/orders?limit=2{query}")).await.0.len();
    assert_eq!(count("&status=CONFIRMED").await, 6);
    assert_eq!(count("&status=PENDING_PAYMENT").await, 3);
    assert_eq!(count("&status=EXPIRED").await, 0);
    // From is inclusive, to is not.
    assert_eq!(count("&createdFrom=2026-01-01T03:00:00Z").await, 6);
    assert_eq!(count("&createdTo=2026-01-01T03:00:00Z").await, 3);
    assert_eq!(count("&createdFrom=2026-01-01T10:00:00%2B09:00&createdTo=2026-01-01T05:00:00Z").await, 4);
    assert_eq!(count("&status=CONFIRMED&createdFrom=2026-01-01T02:00:00Z").await, 5);
}

#[tokio::test]
async fn a_customer_lists_only_their_own_orders() {
    let app = TestApp::start().await;
    app.place("k", &order()).await.placed();
    let other = app.request_as(Uuid::new_v4(), "customer", reqwest::Method::GET, "/v1/orders");
    let page = crate::app::send(other).await.json();
    assert_eq!(page, json!({"items": [], "nextCursor": null}));
    let own = app.get("/v1/orders").await.json();
    assert_eq!(
        own["items"][0],
        app.get(&format!("/v1/orders/{}", own["items"][0]["id"].as_str().unwrap())).await.json()
    );
}

#[tokio::test]
async fn a_damaged_or_foreign_cursor_is_refused() {
    let app = TestApp::start().await;
    for n in 0..3 {
        app.place(&format!("k{n}"), &order()).await.placed();
    }
    let page = app.get("/v1/orders?limit=1").await.json();
    let cursor = page["nextCursor"].as_str().unwrap();
    for query in [
        "cursor=".into(),
        "cursor=x".into(),
        format!("cursor={}", &cursor[1..]),
        format!("cursor={cursor}&status=CONFIRMED"),
        format!("cursor={cursor}&createdFrom=2026-01-01T00:00:00Z"),
    ] {
        app.get(&format!("/v1/orders?{query}")).await.problem(400, "invalid-cursor");
    }
    // The size of a page is no filter.
    assert_eq!(
        app.get(&format!("/v1/orders?limit=100&cursor={cursor}")).await.json()["items"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn a_wrong_parameter_is_named() {
    let app = TestApp::start().await;
    for (query, code, named) in [
        ("limit=0", "validation-failed", "/limit"),
        ("limit=101", "validation-failed", "/limit"),
        ("limit=ten", "validation-failed", "/limit"),
        ("limit=", "validation-failed", "/limit"),
        ("status=confirmed", "validation-failed", "/status"),
        ("status=", "validation-failed", "/status"),
        ("createdFrom=2026-01-01", "validation-failed", "/createdFrom"),
        ("createdTo=yesterday", "validation-failed", "/createdTo"),
        (
            "createdFrom=2026-01-02T00:00:00Z&createdTo=2026-01-01T00:00:00Z",
            "validation-failed",
            "/createdTo",
        ),
        (
            "createdFrom=2026-01-02T00:00:00Z&createdTo=2026-01-02T00:00:00Z",
            "validation-failed",
            "/createdTo",
        ),
        ("page=2", "invalid-request", "page"),
        ("limit=1&limit=2", "invalid-request", "limit"),
    ] {
        let answer = app.get(&format!("/v1/orders?{query}")).await;
        let problem = answer.problem(400, code);
        assert!(problem.to_string().contains(named), "{query}: {problem}");
    }
}

#[tokio::test]
async fn the_catalogue_has_pages_of_what_can_be_ordered() {
    let app = TestApp::start().await;
    app.execute(
        "insert into product values ('OLD', 'old', 1, 'KRW', false), ('a-1', 'lower', 1, 'KRW', true)",
    )
    .await;
    for limit in [1, 2, 3, 100] {
        let (products, _) = all(&app, &format!("/v1/products?limit={limit}")).await;
        let skus: Vec<&str> = products.iter().map(|p| p["sku"].as_str().unwrap()).collect();
        assert_eq!(skus, ["GOLD", "MUG-1", "TEA-100", "a-1"]);
        assert_eq!(
            products[1],
            json!({"sku": "MUG-1", "name": "MUG-1", "unitPrice": 12_000, "currency": "KRW", "minorUnits": 0})
        );
    }
    app.get("/v1/products?cursor=%21").await.problem(400, "invalid-cursor");
    app.get("/v1/products?limit=1000").await.problem(400, "validation-failed");
    app.get("/v1/products?q=tea").await.problem(400, "invalid-request");
}
