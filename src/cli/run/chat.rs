//! Holds a conversation: answers each message.

use super::figures;
use super::messages::{ChatCommand, HELP, Messages, Wish};
use super::session::{Reply, Screen, Session};
use super::thinking::{self, Shown, Think};
use crate::cli::{Failure, note, options, print, warn};
use crate::engine::chat::{AskError, Context, Conversation};
use crate::engine::{Job, StopReason, ThoughtLimit, TokenFilter};
use crate::sys::signal;
use crate::tokenizer::{ChatFormat, ChatOptions, ThoughtFilter};

/// Divisor: a quarter of the context is kept free for an answer of unknown length.
const RESERVED_PART: usize = 4;

/// Answers messages until the input ends.
pub(super) fn run(mut session: Session<'_>) -> Result<(), Failure> {
    let tokenizer = &session.loaded.tokenizer;
    let template = session.loaded.chat_template;
    let thinks = session.flags.think.map(|think| think != Think::Off);
    let options = ChatOptions { thinks, ..ChatOptions::new(options::today()?) };
    let format = ChatFormat::new(template, tokenizer, options).map_err(|e| Failure::input(&e))?;
    let wanted = (session.flags.think, session.flags.think_tokens);
    let think = thinking::choose(wanted, format.thoughts())?;
    let mut conversation = Conversation::new(tokenizer, format, session.flags.system.clone());
    let mut messages = Messages::new(&session)?;
    let (mut n_refused, mut n_answers) = (0, 0);
    while let Some(wish) = messages.next()? {
        let message = match wish {
            Wish::Message(message) => message,
            Wish::Command(ChatCommand::Exit) => break,
            Wish::Command(command) => {
                obey(&command, &mut conversation);
                continue;
            }
        };
        let Some(context) = ask(&session, &mut conversation, &message) else {
            n_refused += 1;
            continue;
        };
        n_answers += 1;
        let screen = Screen::new();
        let begins_thinking = conversation.begins_thinking();
        let job = Job {
            n_predict: session.flags.n_predict.unwrap_or(usize::MAX),
            stop_ids: conversation.stop_ids().to_vec(),
            starts_text: true,
            names_special: conversation.names_special(),
            filter: limit(&session, &conversation, begins_thinking),
            ..session.job(context.ids)
        };
        let filter = conversation.thoughts().map(|kind| ThoughtFilter::new(kind, begins_thinking));
        let shown = Shown::new(session.flags.json).with_thoughts(filter, think);
        let reply = session.answer(job, &screen, shown)?;
        conversation.answer(&reply.ids, &reply.text);
        screen.check()?;
        report(&session, &reply, &message)?;
        if !screen.is_open() {
            break;
        }
        if reply.outcome.reason == StopReason::Interrupted {
            if signal::is_final() {
                return Err(Failure::Interrupted);
            }
            signal::count_one().map_err(|e| Failure::runtime(&e))?;
        }
    }
    match (n_refused, n_answers) {
        (1.., 0) => Err(Failure::Runtime("no message could be answered".to_owned())),
        _ => Ok(()),
    }
}

/// The filter that ends thoughts after a number of tokens, if the user wants one.
fn limit(
    session: &Session<'_>,
    conversation: &Conversation<'_>,
    begins_thinking: bool,
) -> Option<Box<dyn TokenFilter>> {
    let place = (conversation.format(), &session.loaded.tokenizer);
    let limit = ThoughtLimit::new(place, begins_thinking, session.flags.think_tokens?, None)?;
    Some(Box::new(limit))
}

/// Obeys a command to LEAP itself, except [`ChatCommand::Exit`].
fn obey(command: &ChatCommand, conversation: &mut Conversation<'_>) {
    match command {
        ChatCommand::Exit => {}
        ChatCommand::Help => note(HELP),
        ChatCommand::Clear => {
            conversation.clear();
            note("the conversation begins anew");
        }
        ChatCommand::System(Some(text)) => {
            conversation.set_system(Some(text.clone()));
            conversation.clear();
            note("the conversation begins anew, with these instructions");
        }
        ChatCommand::System(None) => {
            note(conversation.system().unwrap_or("there are no instructions"))
        }
        ChatCommand::Unknown(word) => {
            note(&format!("/{word} is no command; /help lists them, //{word} is a message"));
        }
    }
}

/// Adds the message; `None`, after telling the user, if it is too long.
fn ask(
    session: &Session<'_>,
    conversation: &mut Conversation<'_>,
    message: &str,
) -> Option<Context> {
    let ctx_len = session.engine.ctx_len();
    let part = ctx_len / RESERVED_PART;
    let reserve = session.flags.n_predict.unwrap_or(part).min(part).max(1);
    match conversation.ask(message, ctx_len, reserve) {
        Ok(context) => {
            if context.dropped > 0 {
                warn(&format!(
                    "the context is full: dropped the oldest turns ({}), down to half of it",
                    context.dropped
                ));
            }
            Some(context)
        }
        Err(e @ AskError::TooLong { .. }) => {
            let with = conversation.system().map_or("", |_| ", instructions included");
            warn(&format!("{e}{with}; {}", session.shorten()));
            None
        }
        Err(e) => {
            warn(&e.to_string());
            None
        }
    }
}

fn report(session: &Session<'_>, reply: &Reply, message: &str) -> Result<(), Failure> {
    let outcome = &reply.outcome;
    if session.flags.json {
        return print(&figures::json(outcome, session, message, &reply.text));
    }
    print("\n")?;
    if outcome.reason == StopReason::ContextFull {
        let ctx_len = session.engine.ctx_len();
        warn(&format!("the context of {ctx_len} tokens is full: the answer ends here"));
    }
    if !session.flags.quiet {
        note(&figures::line(outcome, session));
        figures::ring_line(&session.engine).iter().for_each(|line| note(line));
    }
    Ok(())
}
