//! Tests of the decisions: who is loaded, who is dropped, and who waits.

use super::*;
use crate::format::tokenizer::TokenizerFile;
use crate::format::{ChatTemplate, Suggested};
use crate::serve::jobs::JobQueue;
use crate::serve::service::{House, ModelAbout, ServedModel};
use crate::tokenizer::Tokenizer;

fn wanted(name: &str) -> Wanted {
    Wanted { name: name.to_owned(), digest: String::new(), memory: 10 }
}

fn service() -> Arc<Service> {
    let bytes = include_bytes!("../../../models/demo.tokenizer.bin");
    let file = TokenizerFile::parse(bytes, None).unwrap();
    let model = ServedModel {
        about: ModelAbout::default(),
        tokenizer: Arc::new(Tokenizer::new(file).unwrap()),
        chat_template: ChatTemplate::Llama3,
        stop_ids: Vec::new(),
        suggested: Suggested::default(),
        embeds: None,
    };
    let (queue, _) = JobQueue::new(1);
    Arc::new(Service::new(model, (8, 8), (queue, &Arc::new(House::new(0)))))
}

/// Has `name` loaded for one request, which ends at once unless it `stays`.
fn load(table: &mut Table, name: &str, now: Instant, stays: bool) -> u64 {
    let Claim::Load(id) = table.claim(&wanted(name), now) else { panic!("{name} has no room") };
    table.set_ready(id, service());
    if !stays {
        table.release(id);
    }
    id
}

fn phase(table: &Table, id: u64) -> &'static str {
    match table.slot(id).map(|slot| &slot.phase) {
        None => "gone",
        Some(Phase::Loading) => "loading",
        Some(Phase::Ready(_)) => "ready",
        Some(Phase::Failed(_)) => "failed",
        Some(Phase::Ending) => "ending",
    }
}

#[test]
fn the_idle_model_that_was_asked_longest_ago_makes_room() {
    let (mut table, now) = (Table::new(25), Instant::now());
    let later = |s| now + Duration::from_secs(s);
    let a = load(&mut table, "a", now, false);
    let b = load(&mut table, "b", later(1), false);
    assert_eq!(table.claim(&wanted("a"), later(2)), Claim::Seat(a));
    table.release(a);
    assert_eq!(table.claim(&wanted("c"), later(3)), Claim::Wait);
    assert_eq!([phase(&table, a), phase(&table, b)], ["ready", "ending"]);
    // Its memory is free only when its thread has ended. Nothing more is dropped until then.
    assert_eq!(table.claim(&wanted("c"), later(4)), Claim::Wait);
    assert_eq!(phase(&table, a), "ready");
    table.remove(b);
    assert!(matches!(table.claim(&wanted("c"), later(5)), Claim::Load(_)));
}

#[test]
fn a_model_that_answers_is_not_dropped_but_gets_no_more_requests_while_others_wait_long() {
    let (mut table, now) = (Table::new(10), Instant::now());
    let a = load(&mut table, "a", now, true);
    assert_eq!(table.claim(&wanted("b"), now), Claim::Wait);
    table.join_line(&wanted("b"), now);
    assert_eq!(table.claim(&wanted("a"), now), Claim::Seat(a));
    let late = now + 2 * PATIENCE;
    assert_eq!(table.claim(&wanted("a"), late), Claim::Wait);
    table.join_line(&wanted("a"), late);
    table.release(a);
    assert_eq!(table.claim(&wanted("b"), late), Claim::Wait);
    assert_eq!(phase(&table, a), "ready", "one request is left");
    table.release(a);
    assert_eq!(table.claim(&wanted("b"), late), Claim::Wait);
    assert_eq!(phase(&table, a), "ending");
    table.remove(a);
    // It is not the turn of those who came later.
    assert_eq!(table.claim(&wanted("a"), late), Claim::Wait);
    assert!(matches!(table.claim(&wanted("b"), late), Claim::Load(_)));
}

#[test]
fn a_request_that_gives_up_closes_nobody_out() {
    let (mut table, now) = (Table::new(10), Instant::now());
    let a = load(&mut table, "a", now, true);
    table.join_line(&wanted("b"), now);
    let late = now + 2 * PATIENCE;
    assert_eq!(table.claim(&wanted("a"), late), Claim::Wait);
    table.leave_line("b");
    assert_eq!(table.claim(&wanted("a"), late), Claim::Seat(a));
}

#[test]
fn a_model_that_cannot_be_loaded_is_told_to_those_who_wait_and_can_be_tried_again() {
    let (mut table, now) = (Table::new(10), Instant::now());
    let Claim::Load(first) = table.claim(&wanted("a"), now) else { panic!("no room") };
    assert_eq!(table.claim(&wanted("a"), now), Claim::Seat(first));
    table.set_failed(first, ApiError::new(500, "damaged"));
    let Claim::Load(second) = table.claim(&wanted("a"), now) else { panic!("no room") };
    table.release(first);
    assert_eq!(phase(&table, first), "failed");
    table.release(first);
    assert_eq!([phase(&table, first), phase(&table, second)], ["gone", "loading"]);
}

/// Neither time, nor requests, nor want of memory drop it.
#[test]
fn a_fixed_model_stays() {
    let (mut table, now) = (Table::new(10), Instant::now());
    table.add_fixed(service());
    let fixed = table.slots()[0].id;
    table.keep(fixed, KeepAlive::For(Duration::ZERO));
    table.expire(Instant::now() + Duration::from_secs(1 << 20));
    let a = load(&mut table, "a", now, false);
    assert_eq!(table.claim(&wanted("b"), now), Claim::Wait);
    table.drop_model(fixed);
    assert_eq!([fixed, a].map(|id| phase(&table, id)), ["ready", "ending"]);
    table.remove(a);
    let b = load(&mut table, "b", now, true);
    table.join_line(&wanted("a"), now);
    assert_eq!(table.claim(&wanted("a"), now + 2 * PATIENCE), Claim::Wait);
    assert_eq!(table.claim(&Wanted { name: String::new(), ..wanted("") }, now), Claim::Seat(fixed));
    assert_eq!(phase(&table, b), "ready");
}

#[test]
fn a_model_is_dropped_when_its_time_is_over() {
    let (mut table, now) = (Table::new(100), Instant::now());
    let [a, b, c] = ["a", "b", "c"].map(|name| load(&mut table, name, now, name == "c"));
    table.keep(a, KeepAlive::For(Duration::ZERO));
    table.keep(b, KeepAlive::Forever);
    table.keep(c, KeepAlive::For(Duration::ZERO));
    let late = Instant::now() + Duration::from_secs(1 << 20);
    table.expire(late);
    assert_eq!([a, b, c].map(|id| phase(&table, id)), ["ending", "ready", "ready"]);
    let mut text = String::new();
    table.add_counts(&mut text);
    for line in ["leap_models_loaded 2", "loads_total{model=\"a\"} 1", "drops_total{model=\"b\"} 0"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
}
