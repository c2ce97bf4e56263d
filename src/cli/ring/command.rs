//! `leap ring`: looks at a running ring, and changes it.

use std::io::ErrorKind;
use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use crate::cli::{Failure, note, options, print};
use crate::control::{Refusal, client, place};

/// Shows what the ring of a running master does, and gives its boards other layers while it answers.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "ring")]
pub(in crate::cli) struct Ring {
    /// status: layers and speed of each board; resize: gives the boards these layers; replan: gives
    /// them the best
    #[argh(positional)]
    action: String,
    /// for resize: layers of every board, first..end, as in desk=0..10,pi=10..22
    #[argh(positional)]
    layers: Option<String>,
    /// socket of the master, if several run
    #[argh(option)]
    control: Option<PathBuf>,
    /// for replan: goal of the split (the master's): latency of one stream, throughput of many, energy of a
    /// token, or memory that stays free on the fullest board
    #[argh(option)]
    objective: Option<String>,
    /// print the status as one JSON object
    #[argh(switch)]
    json: bool,
}

impl Ring {
    pub(in crate::cli) fn execute(self) -> Result<(), Failure> {
        let request = self.request()?;
        let path = match &self.control {
            Some(path) => path.clone(),
            None => only(place::running())?,
        };
        let mut told = String::new();
        let mut hear = |word: &str| {
            if told != word {
                note(&format!("leap: {word}"));
                told = word.to_owned();
            }
        };
        let shown = path.display();
        match client::ask(&path, &request, &mut hear) {
            Ok(Ok(text)) => print(&text),
            Ok(Err(Refusal { code, why })) => Err(match code {
                2 => Failure::Usage(why),
                3 => Failure::Input(why),
                4 => Failure::Ring(why),
                _ => Failure::Runtime(why),
            }),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                Err(Failure::Runtime(format!("no master of a ring listens on {shown}")))
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(Failure::Runtime(format!("the master at {shown} does not answer")))
            }
            Err(e) => Err(Failure::Runtime(format!("cannot ask the master at {shown}: {e}"))),
        }
    }

    /// The request to the master.
    fn request(&self) -> Result<String, Failure> {
        let usage = |what: &str| Err(Failure::Usage(what.to_owned()));
        let is = |action: &str| self.action == action;
        if self.layers.is_some() != is("resize") {
            return usage(
                "resize wants the layers of every board, as in desk=0..10,pi=10..22; others want none",
            );
        }
        if self.objective.is_some() && !is("replan") {
            return usage("--objective is for replan");
        }
        if self.json && !is("status") {
            return usage("--json is for status");
        }
        match (self.action.as_str(), &self.layers) {
            ("status", None) => Ok(if self.json { "status json" } else { "status" }.to_owned()),
            ("resize", Some(layers)) if layers.len() <= 4000 && !layers.contains([' ', '\n']) => {
                Ok(format!("resize {layers}"))
            }
            ("resize", _) => {
                usage("the layers are written without spaces, as in desk=0..10,pi=10..22")
            }
            ("replan", None) => match &self.objective {
                None => Ok("replan".to_owned()),
                Some(name) => {
                    options::objective(name).map_err(Failure::Usage)?;
                    Ok(format!("replan {name}"))
                }
            },
            (action, _) => usage(&format!("{action:?} is none of status, resize and replan")),
        }
    }
}

/// The one master that runs.
fn only(mut running: Vec<PathBuf>) -> Result<PathBuf, Failure> {
    match running.len() {
        0 => Err(Failure::Runtime(
            "no master of a ring runs here as this user; its socket can be named with --control"
                .to_owned(),
        )),
        1 => Ok(running.remove(0)),
        _ => {
            let paths: Vec<String> = running.iter().map(|p| p.display().to_string()).collect();
            Err(Failure::Usage(format!(
                "several masters run: name the socket of one with --control: {}",
                paths.join(", ")
            )))
        }
    }
}
