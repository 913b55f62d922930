# pg_tandem: one extension and one command
#
#   make            build          make check   install what is missing, test
#   make install    install        make demo    a failover in two minutes
#
# PG_CONFIG=/path/to/pg_config   the server to build for
# CASSERT=1                      assertions in our code
# SANITIZE=1                     address and undefined-behaviour sanitizers

EXTENSION = pg_tandem
MODULE_big = pg_tandem
DATA = sql/pg_tandem--0.1.0.sql
TANDEM_VERSION = 0.1.0

SERVER_SRC = $(sort $(wildcard src/*.c src/*/*.c))
OBJS = $(SERVER_SRC:.c=.o)
SERVER_HEADERS = $(sort $(wildcard src/*.h src/*/*.h))

CLI_SRC = $(sort $(wildcard cli/*.c cli/*/*.c))
CLI_OBJS = $(CLI_SRC:.c=.o)
CLI_HEADERS = $(sort $(wildcard cli/*.h cli/*/*.h))
CLI_PROGRAM = $(if $(CLI_SRC),cli/tandem)

PG_CPPFLAGS = -I$(CURDIR)/src -I$(shell $(PG_CONFIG) --includedir) -DTANDEM_VERSION='"$(TANDEM_VERSION)"'
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers
SHLIB_LINK = -lpq
EXTRA_CLEAN = cli/tandem $(CLI_OBJS) $(OBJS:.o=.bc) tmp_check
override with_llvm = no

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

$(OBJS): $(SERVER_HEADERS)
