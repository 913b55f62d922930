/*-------------------------------------------------------------------------
 *
 * gate.c
 *	  Holding logical walsenders back.
 *
 * src/slots/gate.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "slots/gate.h"

void
tandem_gate_init(void)
{
}

void
tandem_gate_set_shutdown(bool shutting_down)
{
}

bool
tandem_gate_blocked(const char **reason, const char **hint)
{
	return false;
}
