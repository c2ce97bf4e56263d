#!/usr/bin/env bash
# Compiles the GPU's shaders, src/gpu/shaders/*.comp, to the SPIR-V beside them. Usage: build-shaders.sh [--check]
# --check: fails if a committed file is not what its source compiles to.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

check=
case "$*" in
'') ;;
--check) check=1 ;;
*) die "usage: ${0##*/} [--check]" ;;
esac
need_tools glslangValidator:glslang-tools

shaders=src/gpu/shaders
to=$(mktemp -d)
trap 'rm -rf "$to"' EXIT

# compile NAME SOURCE OPTION...
compile() {
	local name=$1 source=$2
	shift 2
	glslangValidator -g0 -V --target-env vulkan1.2 "-I$shaders" "$@" "$shaders/$source" -o "$to/$name.spv" >"$to/log" ||
		die "$source: $(cat "$to/log")"
	if [ -n "$check" ]; then
		cmp -s "$to/$name.spv" "$shaders/$name.spv" || die "$shaders/$name.spv is not what $source compiles to"
	else
		cp "$to/$name.spv" "$shaders/$name.spv"
	fi
}

for source in "$shaders"/*.comp; do
	name=$(basename "$source" .comp)
	compile "$name" "$name.comp"
done
# Products by the device's own dot products of four bytes, where it has them.
compile product_dot product.comp -DDOT
say "shaders: $(find "$to" -name '*.spv' | wc -l)"
