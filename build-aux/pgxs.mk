# How the server library pg_tandem.so, the output plugin pg_tandem_output.so and
# the command cli/tandem are built.
# Called by the Makefile one folder up, which explains the switches, and run
# from there.

EXTENSION = pg_tandem
MODULE_big = pg_tandem
DATA = $(sort $(wildcard sql/pg_tandem--*.sql))
TANDEM_VERSION = $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" pg_tandem.control)

# a library is one output plugin, so that one is a library of its own
PLUGIN = pg_tandem_output
PLUGIN_OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/output/*.c)))
OBJS = $(filter-out $(PLUGIN_OBJS),$(patsubst %.c,%.o,$(sort $(wildcard src/*.c src/*/*.c))))
CLI_OBJS = $(patsubst %.c,%.o,$(sort $(wildcard cli/*.c cli/*/*.c)))
# uses neither the server's nor the client's libraries
SHARED_OBJS = src/common/column_fit.o

REGRESS = $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS_OPTS = --inputdir=test

# ---- Compiler ----------------------------------------------------------------

# -isystem: what the server's own macros and inline functions do isn't ours to
# warn about.
PG_CPPFLAGS = -Isrc -Icli -DTANDEM_VERSION='"$(TANDEM_VERSION)"' \
	-isystem $(shell $(PG_CONFIG) --includedir-server) \
	-isystem $(shell $(PG_CONFIG) --pkgincludedir)/internal \
	-isystem $(shell $(PG_CONFIG) --includedir)

# -Wno-unused-parameter: hooks, callbacks and SQL functions have the signatures
# that the server gives them.
# -Wno-sign-compare: counting an int up to lengthof() is the server's idiom.
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare

# clang: the server was configured for gcc, whose flags and attributes
# pg_config and the headers pass on.
ifneq (,$(findstring clang,$(shell $(CC) --version)))
PG_CFLAGS += -Wno-unknown-warning-option -Wno-ignored-optimization-argument -Wno-ignored-attributes
endif

ifdef WERROR
PG_CFLAGS += -Werror
endif

# The server's headers allow extensions with assertions in a server without
# (see ExceptionalCondition in c.h): no structure shared with it changes.
ifdef CASSERT
PG_CPPFLAGS += -DUSE_ASSERT_CHECKING=1
endif

# The runtime has to be in the server before this library is, see with-server.
# -D_FORTIFY_SOURCE would hide calls from the sanitizers.
ifdef SANITIZE
PG_CFLAGS += -fsanitize=address,undefined -fno-sanitize-recover=undefined -U_FORTIFY_SOURCE
CLI_LDFLAGS = -fsanitize=address,undefined
SHLIB_LINK += -fsanitize=address,undefined
endif

SHLIB_LINK += -L$(shell $(PG_CONFIG) --libdir) -lpq

# The bitcode of a JIT could inline none of our functions into a query.
override with_llvm = no

# PGXS takes the folder of the first makefile for the source.
override srcdir := .
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# ---- Rebuild what changed ----------------------------------------------------

# Objects depend on all headers, and on how they were compiled.
$(OBJS) $(PLUGIN_OBJS): $(wildcard src/*.h src/*/*.h) .build-flags
$(CLI_OBJS): $(wildcard cli/*.h cli/*/*.h) src/common/column_fit.h .build-flags

BUILD_FLAGS = $(CC) $(CFLAGS) $(CPPFLAGS) $(VERSION)
ifneq ($(BUILD_FLAGS),$(file <.build-flags))
.PHONY: .build-flags
endif
.build-flags:
	$(file >$@,$(BUILD_FLAGS))

# ---- The output plugin --------------------------------------------------------

all: $(PLUGIN)$(DLSUFFIX)

$(PLUGIN)$(DLSUFFIX): $(PLUGIN_OBJS)
	$(CC) $(CFLAGS) $(PLUGIN_OBJS) $(LDFLAGS) $(LDFLAGS_SL) -shared -o $@

install: install-plugin
install-plugin: $(PLUGIN)$(DLSUFFIX) installdirs
	$(INSTALL_SHLIB) $(PLUGIN)$(DLSUFFIX) '$(DESTDIR)$(pkglibdir)/$(PLUGIN)$(DLSUFFIX)'

uninstall: uninstall-plugin
uninstall-plugin:
	rm -f '$(DESTDIR)$(pkglibdir)/$(PLUGIN)$(DLSUFFIX)'

# ---- The command -------------------------------------------------------------

ifneq (,$(CLI_OBJS))
all: cli/tandem

# Static parts come with the server's development files, in pkglibdir or libdir.
cli/tandem: $(CLI_OBJS) $(SHARED_OBJS)
	$(CC) $(CFLAGS) $(CLI_OBJS) $(SHARED_OBJS) $(CLI_LDFLAGS) -L$(pkglibdir) -L$(libdir) $(LDFLAGS) $(LDFLAGS_EX) \
		-lpgfeutils -lpq -lpgcommon -lpgport -lm -o $@

install: install-cli
install-cli: cli/tandem installdirs
	$(MKDIR_P) '$(DESTDIR)$(bindir)'
	$(INSTALL_PROGRAM) cli/tandem '$(DESTDIR)$(bindir)/tandem'

uninstall: uninstall-cli
uninstall-cli:
	rm -f '$(DESTDIR)$(bindir)/tandem'
endif

# ---- Programs that only tests run --------------------------------------------

TEST_PROGRAMS = test/wal_dump

.PHONY: test-programs
test-programs: $(TEST_PROGRAMS)

test/wal_dump.o: $(wildcard cli/*/*.h) .build-flags
test/wal_dump: test/wal_dump.o cli/rejoin/wal.o cli/rejoin/record.o
	$(CC) $(CFLAGS) $^ $(CLI_LDFLAGS) -L$(pkglibdir) -L$(libdir) $(LDFLAGS) $(LDFLAGS_EX) \
		-lpgcommon -lpgport -o $@
