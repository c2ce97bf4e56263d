//! Roles of a board in a ring, and the options of each.

/// Role of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Role {
    /// The only board: there is no ring.
    Single,
    /// Takes prompts and shows text.
    Master,
    /// Runs some of the layers.
    Worker,
}

const ALL: [Role; 3] = [Role::Single, Role::Master, Role::Worker];

impl Role {
    pub(in crate::cli) fn name(self) -> &'static str {
        match self {
            Role::Single => "single",
            Role::Master => "master",
            Role::Worker => "worker",
        }
    }

    pub(in crate::cli) fn from_name(name: &str) -> Option<Role> {
        ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Parses `single`, `master` or `worker`.
pub(super) fn parse(value: &str) -> Result<Role, String> {
    let problem = || format!("{value:?} is none of single, master and worker");
    Role::from_name(value).ok_or_else(problem)
}

/// The roles that have this option of `leap run`.
pub(in crate::cli) fn roles(option: &str) -> &'static [Role] {
    match option {
        "--tokenizer" | "--prompt" | "--prompt-file" | "--suffix" | "--chat" | "--system"
        | "--chat-template" | "--n-predict" | "--stop" | "--temp" | "--top-p" | "--top-k"
        | "--seed" | "--json" | "--kv" | "--no-history" | "--draft" | "--draft-node" => {
            &[Role::Single, Role::Master]
        }
        "--ring" | "--team" | "--node" | "--split" | "--transport" | "--host" | "--port"
        | "--next-host" | "--next-port" | "--wire" | "--busy-poll" | "--boards" => {
            &[Role::Master, Role::Worker]
        }
        "--control" | "--ring-timeout" | "--give" | "--take" | "--objective"
        | "--rebalance-after" => &[Role::Master],
        "--end"
        | "--fetch"
        | "--join"
        | "--draft-model"
        | "--prefix-cache"
        | "--prefix-cache-size" => &[Role::Worker],
        _ => &ALL,
    }
}
