# shellcheck shell=bash
# llama.cpp below target/llama, from the source package of PyPI's llama-cpp-python; sourced after lib.sh.

LLAMA=$TARGET_DIR/llama
LLAMA_VERSION=0.3.36

# need_llama TOOL...: builds what is missing of llama.cpp's tools into $LLAMA/build/bin, and into $LLAMA/venv
# the packages gguf and numpy. The first tool takes half an hour on two cores.
need_llama() {
	local tool missing=()
	need_tools python3:python3 g++:g++
	[ -x "$LLAMA/venv/bin/pip" ] || python3 -m venv "$LLAMA/venv" || die "python3 has no venv; install python3-venv"
	"$LLAMA/venv/bin/pip" -q install cmake gguf numpy
	for tool in "$@"; do
		[ -x "$LLAMA/build/bin/$tool" ] || missing+=("$tool")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	[ -d "$LLAMA/source/vendor" ] || step "llama.cpp's source" fetch_llama
	step "llama.cpp" build_llama "${missing[@]}"
}

fetch_llama() {
	local package=$LLAMA/llama_cpp_python-$LLAMA_VERSION.tar.gz
	"$LLAMA/venv/bin/pip" -q download --no-deps --no-binary llama-cpp-python -d "$LLAMA" "llama-cpp-python==$LLAMA_VERSION"
	mkdir -p "$LLAMA/source"
	tar xzf "$package" --strip-components=1 -C "$LLAMA/source"
	rm "$package"
	# It ends without waiting for its log, whose last lines are the figures.
	sed -i 's/^    llama_backend_free();/    common_log_flush(common_log_main());\n&/' \
		"$LLAMA/source/vendor/llama.cpp/tools/perplexity/perplexity.cpp"
}

build_llama() {
	"$LLAMA/venv/bin/cmake" -S "$LLAMA/source/vendor/llama.cpp" -B "$LLAMA/build" -DCMAKE_BUILD_TYPE=Release \
		-DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF >"$LLAMA/cmake.log"
	"$LLAMA/venv/bin/cmake" --build "$LLAMA/build" --target "$@" -j "${JOBS:-$(nproc)}" >"$LLAMA/build.log"
}
