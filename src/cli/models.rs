//! `leap models` and `leap rm`: the models on this machine that names stand for.

use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::checkpoint::CheckpointPath;
use super::reads::TokenReads;
use super::{Failure, convert, model_files, names, note, print};
use crate::format::json::JsonObject;
use crate::format::printable;
use crate::store::{self, FoundModel, MachineRoom, ModelName, StoreError};

/// Lists the models in the folders of Hugging Face's programs and of Ollama, and how fast they would be here.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "models")]
pub(super) struct Models {
    /// print a JSON object a line
    #[argh(switch)]
    json: bool,
}

impl Models {
    pub(super) fn execute(self) -> Result<(), Failure> {
        let room = names::room()?;
        let models = store::all();
        let rows: Vec<Row> = models.iter().map(|model| Row::of(model, &room)).collect();
        if rows.is_empty() && !self.json {
            note(
                "leap: no models; `leap pull hf:ORG/REPO` or `leap pull ollama:MODEL` fetches one",
            );
        }
        print(&match self.json {
            true => rows.iter().map(Row::json).collect::<String>(),
            false => table(&rows),
        })
    }
}

/// Removes a model that `leap pull` brought, and LEAP's own copies of it.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "rm")]
pub(super) struct Remove {
    /// hf:ORG/REPO[:QUANT][@REVISION] or ollama:[HOST/][NAMESPACE/]MODEL[:TAG], as `leap models` lists it
    #[argh(positional)]
    name: PathBuf,
}

impl Remove {
    pub(super) fn execute(self) -> Result<(), Failure> {
        let Some(name) = names::parsed(&self.name)? else {
            let name = self.name.display();
            return Err(Failure::Usage(format!("{name} is no name of a model; see `leap models`")));
        };
        let Some(model) = meant(&name)? else {
            return match store::remove_parts(&name).map_err(names::failure)? {
                0 => Err(Failure::Input(format!("{name} is not on this machine"))),
                bytes => {
                    let mb = bytes as f64 / 1e6;
                    note(&format!("leap: removed what had arrived of {name}, {mb:.1} MB"));
                    Ok(())
                }
            };
        };
        let mb = remove(&model).map_err(names::failure)? as f64 / 1e6;
        note(&format!("leap: removed {}, {mb:.1} MB", model.name));
        Ok(())
    }
}

/// Removes a model that `leap pull` brought, and LEAP's copies of it. Returns their bytes.
pub(super) fn remove(model: &FoundModel) -> Result<u64, StoreError> {
    let checkpoint = CheckpointPath::at(&model.path);
    // The copies are found by the path of the checkpoint, which must be there.
    let copies = checkpoint.filter(|_| model.is_pulled).map_or(0, |at| convert::forget(&at));
    Ok(store::remove(model)?.saturating_add(copies))
}

/// The model that `name` names alone.
fn meant(name: &ModelName) -> Result<Option<FoundModel>, Failure> {
    let ModelName::Hub(hub) = name else { return names::find(name) };
    if hub.quant.is_some() {
        return names::find(name);
    }
    let is_of = |model: &FoundModel| {
        let ModelName::Hub(other) = &model.name else { return false };
        other.repo == hub.repo && other.revision() == hub.revision()
    };
    let mut all: Vec<FoundModel> = store::all().into_iter().filter(is_of).collect();
    if all.len() > 1 {
        let names: Vec<String> = all.iter().map(|model| model.name.to_string()).collect();
        return Err(Failure::Input(format!("{name} may be {}: name one", names.join(" or "))));
    }
    Ok(all.pop())
}

/// A line of the list.
struct Row {
    name: String,
    bytes: u64,
    /// Tokens a second at best, or the reason why the model does not run here.
    here: Result<f64, String>,
    path: String,
    is_pulled: bool,
}

impl Row {
    fn of(model: &FoundModel, room: &MachineRoom) -> Row {
        let header = model_files::header(&model.path);
        let here = header.map_err(|failure| failure.message()).and_then(|header| {
            match room.holds(model.bytes) {
                true => Ok(room.tokens_per_s(TokenReads::of(&header).total())),
                false => Err("does not fit into the free memory".to_owned()),
            }
        });
        Row {
            name: model.name.to_string(),
            bytes: model.bytes,
            here,
            path: model.path.display().to_string(),
            is_pulled: model.is_pulled,
        }
    }

    fn json(&self) -> String {
        let object = JsonObject::new().string("name", &self.name).integer("bytes", self.bytes);
        let object = match &self.here {
            Ok(tokens) => object.number("tokens_per_s", *tokens),
            Err(why) => object.string("problem", why),
        };
        let object = object.string("path", &self.path).boolean("pulled", Some(self.is_pulled));
        object.finish()
    }
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let line = |row: &Row| {
        let (name, gb, path) = (&row.name, row.bytes as f64 / 1e9, &row.path);
        let here = match &row.here {
            Ok(tokens) => format!("about {tokens:.0} tokens/s"),
            Err(why) => why.clone(),
        };
        format!("{name:width$}  {gb:>7.2} GB  {here}\n{:width$}  {path}\n", "")
    };
    let text: Vec<String> = rows.iter().map(line).collect();
    text.concat().lines().map(|line| printable(line) + "\n").collect()
}
