#include "postgres_fe.h"
#include "command.h"
static int run_uninstall(const Options *options) { return 1; }
const Command uninstall_command = {.name="uninstall",.takes=TAKES_YES|TAKES_DRY_RUN,.synopsis="",.summary="",.help="",.run=run_uninstall};
