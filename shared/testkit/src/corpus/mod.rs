//! Bad requests for every route that a service's own description has: what a caller can do wrong to each parameter, header
//! and member of a body. None may end in a 5xx, or in a success that means nothing; each refusal is a problem that names
//! what is wrong. A route, a parameter or a member that is added is tormented too, and one without bounds is a fault.

mod body;
mod client;
mod header;
mod query;
mod schema;
mod sources;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use serde_json::{Value, json};

use client::Request;
pub use sources::undescribed_routes;

/// Good where an id is asked for.
const ID: &str = "0199f2a4-7c2e-7b7e-8a55-6f1d2c3b4a59";

/// A service to be tormented.
#[derive(Debug)]
pub struct Corpus {
    /// Of its API.
    pub address: SocketAddr,
    /// A token with which every route may be called.
    pub token: String,
    /// Bodies that are good beside what is changed in them, by `POST /path`; else they are made of the description.
    pub bodies: Vec<(&'static str, Value)>,
}

/// Good bodies of the operators' routes of a consuming service, for one of its subscriptions.
#[must_use]
pub fn operators_bodies(topic: &str, group: &str) -> Vec<(&'static str, Value)> {
    let line = json!({"topic": topic, "group": group});
    let with = |name: &str, value| {
        let mut body = line.clone();
        body[name] = value;
        body
    };
    let message = json!({"message_id": ID, "value": "AAAA"});
    vec![
        ("POST /internal/consumer/check", with("messages", json!([message]))),
        ("POST /internal/consumer/keys/release", with("key", json!("k"))),
        ("POST /internal/consumer/resume", line.clone()),
    ]
}

/// A bad request and what must come of it.
#[derive(Debug)]
struct Case {
    what: String,
    request: Request,
    expected: Expected,
}

#[derive(Debug, Clone)]
enum Expected {
    /// 4xx whose `errors` name one of these places, with this in the text.
    Named(Vec<String>, String),
    /// 4xx.
    Refused,
    /// Anything that is no fault of the service: the description says what it means.
    Documented,
    /// Taken for the integer that it is; whether that has a place here is another matter.
    Integer,
}

/// One operation of the description.
#[derive(Debug)]
struct Operation<'a> {
    description: &'a Value,
    name: String,
    method: String,
    path: String,
    value: &'a Value,
    body: Option<Value>,
}

impl Operation<'_> {
    fn parameters(&self, place: &str) -> Vec<&Value> {
        let all = self.value["parameters"].as_array().into_iter().flatten();
        all.filter(|parameter| parameter["in"] == place).collect()
    }

    /// The path with good values in it, but for those that are given.
    fn target(&self, given: &[(&str, &str)]) -> String {
        let mut target = self.path.clone();
        for parameter in self.parameters("path") {
            let name = parameter["name"].as_str().unwrap_or_default();
            let good = schema::good(self.description, &parameter["schema"]);
            let good = good.as_str().map_or_else(|| good.to_string(), str::to_owned);
            let value = given.iter().find(|(of, _)| *of == name).map_or(good.as_str(), |(_, value)| value);
            target = target.replace(&format!("{{{name}}}"), value);
        }
        target
    }
}

impl Corpus {
    /// Sends everything, and gives the number of requests.
    ///
    /// # Panics
    /// With every violation at once.
    pub async fn run(&self) -> usize {
        let (sent, violations) = self.violations().await;
        assert!(violations.is_empty(), "{} of {sent}:\n{}", violations.len(), violations.join("\n"));
        sent
    }

    async fn violations(&self) -> (usize, Vec<String>) {
        let answer = Request::new("GET", "/openapi.json").send(self.address).await;
        let description: Value = serde_json::from_str(&answer.body).expect("a description");
        let mut violations = Vec::new();
        let mut sent = 0;
        for (path, operations) in description["paths"].as_object().expect("paths") {
            for (method, value) in operations.as_object().expect("operations") {
                let operation = self.operation(&description, method, path, value);
                sent += self.torment(&operation, &mut violations).await;
            }
        }
        (sent, violations)
    }

    fn operation<'a>(
        &self,
        description: &'a Value,
        method: &str,
        path: &str,
        value: &'a Value,
    ) -> Operation<'a> {
        let method = method.to_uppercase();
        let name = format!("{method} {path}");
        let content = &value["requestBody"]["content"]["application/json"];
        let given = self.bodies.iter().find(|(of, _)| *of == name).map(|(_, body)| body.clone());
        let body = content.is_object().then(|| {
            let example = content.get("example").cloned();
            given.or(example).unwrap_or_else(|| schema::good(description, &content["schema"]))
        });
        Operation { description, name, method, path: path.to_owned(), value, body }
    }

    async fn torment(&self, operation: &Operation<'_>, violations: &mut Vec<String>) -> usize {
        let good = self.good(operation);
        let answer = good.send(self.address).await;
        let name = &operation.name;
        if answer.status >= 500 && !name.ends_with("/readyz") || answer.status == 429 {
            violations.push(format!("{name}: a good request: {} {}", answer.status, answer.body));
        }
        let mut cases = query::cases(operation, &good);
        cases.extend(query::path_cases(operation, &good));
        cases.extend(header::cases(operation, &good));
        cases.extend(body::cases(operation, &good));
        for Case { what, request, expected } in &cases {
            let got = request.send(self.address).await;
            if let Err(why) = judge(&got, expected) {
                violations.push(format!("{name}: {what}: {why}: {} {}", got.status, cut(&got.body)));
            }
        }
        cases.len() + 1
    }

    fn good(&self, operation: &Operation<'_>) -> Request {
        let mut target = operation.target(&[]);
        let required = operation.parameters("query").into_iter().filter(|p| p["required"] == true);
        let required: Vec<_> = required.map(|p| query::pair(operation.description, p)).collect();
        if !required.is_empty() {
            target = format!("{target}?{}", required.join("&"));
        }
        let mut request = Request::new(&operation.method, &target);
        request = request.header("Authorization", format!("Bearer {}", self.token));
        for parameter in operation.parameters("header").into_iter().filter(|p| p["required"] == true) {
            let example = parameter["example"].as_str().unwrap_or("x");
            request = request.header(parameter["name"].as_str().unwrap_or_default(), example);
        }
        match &operation.body {
            Some(body) => request.header("Content-Type", "application/json").body(body.to_string()),
            None => request,
        }
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(400)]
}

fn judge(got: &client::Answer, expected: &Expected) -> Result<(), String> {
    if got.status >= 500 || got.status == 429 {
        return Err("a fault of the service".to_owned());
    }
    if got.status >= 400 {
        is_problem(got)?;
    }
    match expected {
        Expected::Documented => Ok(()),
        Expected::Integer => {
            let refused = ["must be an integer", "not JSON"].iter().any(|text| got.body.contains(text));
            if refused { Err("is an integer".to_owned()) } else { Ok(()) }
        }
        Expected::Refused | Expected::Named(..) if got.status < 400 => Err("is not refused".to_owned()),
        Expected::Refused => Ok(()),
        Expected::Named(pointers, text) => {
            let errors = serde_json::from_str::<Value>(&got.body).unwrap_or_default()["errors"].clone();
            let names = |error: &Value| {
                let pointer = error["pointer"].as_str().unwrap_or("?");
                let detail = error["detail"].as_str().unwrap_or_default();
                pointers.iter().any(|one| one == pointer)
                    && !detail.is_empty()
                    && detail.contains(text.as_str())
            };
            let named = errors.as_array().is_some_and(|errors| errors.iter().any(names));
            named.then_some(()).ok_or_else(|| format!("names none of {pointers:?} with {text:?}"))
        }
    }
}

fn is_problem(got: &client::Answer) -> Result<(), String> {
    let problem: Value = serde_json::from_str(&got.body).map_err(|_| "is no problem".to_owned())?;
    let texts = ["type", "title", "code", "detail"].iter().all(|name| problem[*name].is_string());
    let same =
        problem["status"] == json!(got.status) && problem["requestId"] == json!(got.header("x-request-id"));
    let kind = got.header("content-type") == Some("application/problem+json");
    (texts && same && kind).then_some(()).ok_or_else(|| "is no whole problem".to_owned())
}
