# pg_tandem: one extension and one command
#
#   make              build                make install      install into the server
#   make check        test                 make demo         a failover in two minutes
#   make bench-slots, bench-failback, bench-tables, bench-conflicts: measure
#   make matrix       build and test with PostgreSQL 15, 17, 18 and 19, each in a root of
#                     its own (build-aux/matrix); with your own server: check PG_CONFIG=...
#   make lint, format, clean
#
# check, demo and the benchmarks need no "make install" and change nothing that is
# installed: they run servers from a private copy of the installation in a
# temporary folder, as user postgres when make runs as root.  As root they also
# install the Debian packages that are missing; otherwise they name them.
#
#   PG_CONFIG=/path/to/pg_config   the server to build for
#   CASSERT=1                      assertions in our code
#   SANITIZE=1                     address and undefined-behaviour sanitizers
#   WERROR=1                       warnings are errors
#   PROVE_TESTS="test/t/001*.pl"   only these tests
#   SIZE=full                      benchmarks at full size
#
# How the library and the command are compiled: build-aux/pgxs.mk

PG_CONFIG ?= $(shell build-aux/packages pg-config)
export PG_CONFIG PROVE_TESTS PROVE_FLAGS CASSERT SANITIZE WERROR SIZE

BUILD = $(MAKE) --no-print-directory -f build-aux/pgxs.mk

.PHONY: all install uninstall installcheck clean check demo bench-slots bench-failback bench-tables bench-conflicts matrix lint format
all install uninstall installcheck:
	@build-aux/packages require build
	@$(BUILD) $@

check:
	@build-aux/packages install build test
	@build-aux/with-server build-aux/run-tests

demo:
	@build-aux/packages install build
	@build-aux/with-server demo/demo.sh

bench-slots bench-failback bench-tables bench-conflicts:
	@build-aux/packages install build test bench
	@build-aux/with-server bench/$(@:bench-%=%).pl

matrix:
	@build-aux/matrix $(VERSIONS)

lint:
	@build-aux/packages install build test lint
	@build-aux/lint

format:
	@build-aux/packages install format
	@build-aux/format $(wildcard src/*.[ch] src/*/*.[ch] cli/*.[ch] cli/*/*.[ch])

clean:
	rm -rf pg_tandem.so pg_tandem_output.so libpg_tandem.a libpg_tandem.pc cli/tandem test/wal_dump .build-flags tmp_check
	find src cli test -name '*.o' -delete
