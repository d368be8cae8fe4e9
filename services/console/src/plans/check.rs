//! What the consuming services know of the letters: asked in portions, several at a time.

use std::collections::HashMap;

use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt, stream};
use sqlx::PgPool;
use uuid::Uuid;

use super::judge::{Candidate, Skip};
use super::store;
use crate::services::contract::{Check, CheckMessage, CheckedMessage};
use crate::services::{Fault, Services};

/// Most letters of a question.
const MOST: usize = 500;
/// Bytes of a question, about: most services take bodies of 64 KiB.
const BYTES: usize = 48 << 10;
/// What a letter takes in a question besides its value.
const LETTER: usize = 80;
/// Questions at the same time.
const AT_ONCE: usize = 4;

/// A letter that the service is asked about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    /// Its place in the plan.
    pub(super) index: usize,
    pub(super) record_id: i64,
    pub(super) message_id: Uuid,
    size: usize,
}

impl Asked {
    pub(super) fn new(index: usize, letter: &Candidate) -> Self {
        let size = usize::try_from(letter.value_bytes).unwrap_or(0) * 4 / 3 + LETTER;
        Self { index, record_id: letter.record_id, message_id: letter.message_id, size }
    }
}

/// Whom to ask about what; names without prefix.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) service: String,
    pub(super) topic: String,
    pub(super) group: String,
}

/// What speaks against each letter, by its place in the plan.
pub(super) async fn ask(
    pool: &PgPool,
    services: &Services,
    token: &str,
    questions: Vec<(Question, Vec<Asked>)>,
) -> Result<HashMap<usize, (Skip, Option<String>)>, sqlx::Error> {
    let portions: Vec<(Question, Vec<Asked>)> = questions
        .into_iter()
        .flat_map(|(question, letters)| {
            portions(letters).into_iter().map(move |portion| (question.clone(), portion))
        })
        .collect();
    let answers: Vec<_> = stream::iter(portions)
        .map(|(question, letters)| async move { portion(pool, services, token, &question, &letters).await })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut against = HashMap::new();
    for answer in answers {
        against.extend(answer?);
    }
    Ok(against)
}

fn portions(letters: Vec<Asked>) -> Vec<Vec<Asked>> {
    let mut portions: Vec<Vec<Asked>> = Vec::new();
    let mut size = usize::MAX;
    for letter in letters {
        if size.saturating_add(letter.size) > BYTES || portions.last().is_none_or(|last| last.len() >= MOST) {
            portions.push(Vec::new());
            size = 0;
        }
        size += letter.size;
        if let Some(last) = portions.last_mut() {
            last.push(letter);
        }
    }
    portions
}

type Against = Vec<(usize, (Skip, Option<String>))>;

async fn portion(
    pool: &PgPool,
    services: &Services,
    token: &str,
    question: &Question,
    letters: &[Asked],
) -> Result<Against, sqlx::Error> {
    let records: Vec<i64> = letters.iter().map(|letter| letter.record_id).collect();
    let mut values = store::values(pool, &records).await?;
    let mut value = |record| values.remove(&record).flatten().map(|value| STANDARD.encode(value));
    let messages = letters
        .iter()
        .map(|letter| CheckMessage { message_id: letter.message_id, value: value(letter.record_id) });
    let check =
        Check { topic: question.topic.clone(), group: question.group.clone(), messages: messages.collect() };
    let answer = services.check(&question.service, &check, token).await;
    let too_large = matches!(&answer, Err(fault) if fault.status() == Some(StatusCode::PAYLOAD_TOO_LARGE));
    if too_large && letters.len() == 1 {
        return Ok(without_value(services, token, &question.service, check, letters[0]).await);
    }
    if too_large {
        let (left, right) = letters.split_at(letters.len() / 2);
        let mut against = Box::pin(portion(pool, services, token, question, left)).await?;
        against.extend(Box::pin(portion(pool, services, token, question, right)).await?);
        return Ok(against);
    }
    Ok(judge(letters, answer.map(|answer| answer.messages), true))
}

/// A value that is too large to be asked about: the inbox still can be.
async fn without_value(
    services: &Services,
    token: &str,
    service: &str,
    mut check: Check,
    letter: Asked,
) -> Against {
    check.messages.iter_mut().for_each(|message| message.value = None);
    let answer = services.check(service, &check, token).await;
    judge(&[letter], answer.map(|answer| answer.messages), false)
}

fn judge(letters: &[Asked], answer: Result<Vec<CheckedMessage>, Fault>, decoded: bool) -> Against {
    let answer = match answer {
        Ok(answer) => answer,
        Err(fault) => {
            let detail = Some(fault.to_string());
            return letters
                .iter()
                .map(|letter| (letter.index, (Skip::ServiceUnreachable, detail.clone())))
                .collect();
        }
    };
    let mut known: HashMap<Uuid, CheckedMessage> =
        answer.into_iter().map(|message| (message.message_id, message)).collect();
    let one = |letter: &Asked| match known.remove(&letter.message_id) {
        None => Some((Skip::ServiceUnreachable, Some("the service does not say".to_owned()))),
        Some(message) if message.inbox.as_deref() == Some("done") => {
            Some((Skip::AlreadyProcessed, message.replay_id.map(|id| format!("in replay {id}"))))
        }
        Some(message) if decoded && !message.decodes => Some((Skip::DoesNotDecode, message.decode_error)),
        Some(_) => None,
    };
    let mut one = one;
    letters.iter().filter_map(|letter| Some((letter.index, one(letter)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_bounded_by_count_and_bytes() {
        let letter = |size| Asked { index: 0, record_id: 0, message_id: Uuid::nil(), size };
        let counts = |letters: Vec<Asked>| portions(letters).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(counts(vec![letter(1); 1001]), [500, 500, 1]);
        // One that is too large alone goes alone.
        assert_eq!(counts(vec![letter(100), letter(BYTES * 20), letter(100)]), [1, 1, 1]);
        assert_eq!(counts(vec![letter(BYTES / 2); 4]), [2, 2]);
        assert!(portions(Vec::new()).is_empty());
    }
}
