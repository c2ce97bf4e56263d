//! Roles of a board among others, and the options of each.

/// Role of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The only board: there are no others.
    Single,
    /// Takes prompts and shows text.
    Master,
    /// Runs some of the layers.
    Worker,
}

impl Role {
    /// Every role.
    pub(super) const ALL: [Role; 3] = [Role::Single, Role::Master, Role::Worker];

    /// Name of the role, as `--role` has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Role::Single => "single",
            Role::Master => "master",
            Role::Worker => "worker",
        }
    }

    /// The command that starts a board in this role.
    pub(super) fn command(self) -> &'static str {
        match self {
            Role::Single => "leap run",
            Role::Master => "leap master",
            Role::Worker => "leap worker",
        }
    }

    /// Parses `single`, `master` or `worker`.
    pub(super) fn parse(value: &str) -> Result<Role, String> {
        let problem = || format!("{value:?} is none of single, master and worker");
        Role::ALL.into_iter().find(|role| role.name() == value).ok_or_else(problem)
    }
}

/// The roles that have this option of `leap run`.
pub(super) fn roles(option: &str) -> &'static [Role] {
    match option {
        "--tokenizer" | "--prompt" | "--prompt-file" | "--suffix" | "--chat" | "--system"
        | "--chat-template" | "--n-predict" | "--stop" | "--temp" | "--top-p" | "--top-k"
        | "--min-p" | "--seed" | "--json" | "--kv" | "--no-history" | "--draft"
        | "--draft-node" => &[Role::Single, Role::Master],
        "--team" | "--node" | "--transport" | "--host" | "--port" | "--wire" | "--busy-poll"
        | "--boards" => &[Role::Master, Role::Worker],
        "--control" | "--ring-timeout" | "--take" | "--objective" | "--rebalance-after" => {
            &[Role::Master]
        }
        "--draft-model" | "--prefix-cache" | "--prefix-cache-size" => &[Role::Worker],
        _ => &Role::ALL,
    }
}
