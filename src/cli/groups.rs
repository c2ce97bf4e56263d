//! Short help of the commands that run a model: their main options in groups, one line each. `--help-all` shows all.

use super::roles::Role;

/// Options of one kind.
pub(super) struct Group {
    pub(super) title: &'static str,
    /// Each option's name and a few words about it.
    pub(super) options: &'static [(&'static str, &'static str)],
}

const PROMPT: Group = Group {
    title: "Prompt",
    options: &[
        ("--prompt", "text to go on from; - reads it from stdin"),
        ("--prompt-file", "file with that text"),
        ("--chat", "hold a conversation; on a terminal /help says more"),
        ("--system", "instructions for the whole conversation"),
        ("--think", "thoughts of a model that thinks: on, off or hide"),
        ("--n-predict", "most tokens to generate (256); -1: to the end"),
        ("--stop", "text that ends the answer; may be given several times"),
        ("--json", "print one JSON object instead of the text"),
        ("--quiet", "do not print the line of figures"),
    ],
};

const SAMPLING: Group = Group {
    title: "Sampling",
    options: &[
        ("--temp", "temperature (1.0); 0 always takes the most likely token"),
        ("--top-p", "keep the most likely tokens with this probability (0.9)"),
        ("--top-k", "keep this many of the most likely tokens (0: all)"),
        ("--min-p", "keep tokens this many times as likely as the likeliest (0)"),
        ("--seed", "start of the random numbers (0: another one each time)"),
        ("--draft", "guess ahead: auto, ngram, a smaller model's file, or off"),
    ],
};

const MACHINE: Group = Group {
    title: "Machine",
    options: &[
        ("--version", "weights of a converted checkpoint: 1 to 5"),
        ("--ctx", "longest context in tokens (the model's, up to 4096)"),
        ("--kv", "keys and values: f16, f32 or int8"),
        ("--device", "cpu, gpu, auto, or part of a device's name"),
        ("--threads", "number of threads (one for each fast core)"),
        ("--cores", "cores to run on, as in 4-7 or 0,2"),
        ("--cache", "packed weights: auto, a file, a folder, or off"),
    ],
};

const BOARDS: Group = Group {
    title: "Boards",
    options: &[
        ("--boards", "auto, HOST[:PORT],... or a file: see `leap help compatibility`"),
        ("--team", "auto: the boards share every layer, instead of a ring"),
        ("--key", "file with the key that all boards share"),
        ("--node", "which board of the file this is (the first)"),
        ("--take", "take boards that work for another master"),
        ("--wire", "activations: f32 (the bits of one board), or f16"),
        ("--draft-node", "board that guesses ahead"),
    ],
};

const WORKER: Group = Group {
    title: "Boards",
    options: &[
        ("--key", "file with the key that all boards share; alone: wait for a master"),
        ("--boards", "file with a line for each board: see `leap help compatibility`"),
        ("--node", "which board of the file this is"),
        ("--wire", "activations: f32 (the bits of one board), or f16"),
        ("--host", "address to listen on"),
        ("--port", "port to listen on (9999; 9997 with --draft-model)"),
        ("--transport", "auto, kernel, udp or tcp"),
        ("--draft-model", "guess for any master, with this smaller model's file"),
        ("--prefix-cache", "folder that keeps this board's part of prompts"),
        ("--quiet", "say nothing when a master opens the ring"),
    ],
};

const CLIENTS: Group = Group {
    title: "Clients",
    options: &[
        ("--listen", "HOST:PORT or a Unix socket's path (127.0.0.1:8080)"),
        ("--api-key-file", "file with the keys that clients may have, one a line"),
        ("--no-auth", "listen beyond this machine without keys"),
        ("--allow-origin", "web page whose scripts may ask, or *"),
        ("--name", "what clients call the model (its file's name)"),
        ("--models", "several models: a folder, or paths behind commas"),
        ("--memory", "memory for those of them that are loaded at a time"),
        ("--log-prompts", "log what clients ask, too"),
        ("--quiet", "print neither the address nor a line for each request"),
    ],
};

const ANSWERS: Group = Group {
    title: "Answers",
    options: &[
        ("--streams", "answers that are written at the same time (4)"),
        ("--queue", "answers that may wait for a stream (64)"),
        ("--kv-memory", "memory for keys and values, as in 500M or 2G"),
        ("--prefix-cache", "folder that keeps prompts over restarts"),
        ("--chat-template", "chat template instead of the model's"),
        ("--draft", "guess ahead: auto, ngram, a smaller model's file, or off"),
    ],
};

const RUN: &[Group] = &[PROMPT, SAMPLING, MACHINE, BOARDS];
const RUN_WORKER: &[Group] = &[MACHINE, WORKER];
const SERVE: &[Group] = &[CLIENTS, ANSWERS, MACHINE, BOARDS];

/// The groups of a command in a role; none for a command with few options.
pub(super) fn of(name: &str, role: Option<Role>) -> &'static [Group] {
    match (name, role) {
        ("run", Some(Role::Worker)) => RUN_WORKER,
        ("run", _) => RUN,
        ("serve", _) => SERVE,
        _ => &[],
    }
}
