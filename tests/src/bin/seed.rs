//! Fills a running stack: products, and orders of some customers, which earn them points. Called by `cargo dev`.

use anyhow::ensure;
use clap::Parser;
use sqlx::PgPool;
use uuid::Uuid;
use waybill_testkit::jwt::Issuer;
use waybill_tests::Client;
use waybill_tests::status::Status;
use waybill_tests::system::{PRODUCTS, seed_products};

#[derive(Parser)]
#[command(about)]
struct Arguments {
    /// Number of customers.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    customers: u32,
    /// Orders of each customer, payable on delivery.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1000))]
    orders: u32,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let status = Status::read()?;
    let pool = PgPool::connect(&status.database.orders).await?;
    seed_products(&pool).await?;
    println!("products: {}", PRODUCTS.map(|(sku, price)| format!("{sku} {price} KRW")).join(", "));
    let issuer = Issuer::open(&status.jwt_dir)?;
    for _ in 0..arguments.customers {
        let customer = Uuid::now_v7();
        let client = Client::new(status.http("order")?, customer, issuer.token(customer, "customer"))?;
        for n in 0..arguments.orders {
            let sku = PRODUCTS[n as usize % PRODUCTS.len()].0;
            let answer =
                client.place(&Uuid::new_v4().to_string(), sku, 1 + n % 3, "ON_DELIVERY", None).await?;
            ensure!(answer.status == 201, "order was refused: {answer:?}");
        }
        println!("customer {customer}: {} orders; cargo dev token --customer {customer}", arguments.orders);
    }
    Ok(())
}
