/*-------------------------------------------------------------------------
 *
 * libpq_methods.h
 *	  The server's methods for talking to a client, and the hook at the end
 *	  of authentication.
 *
 * The server headers that have them drag in GSSAPI and OpenSSL headers, which
 * a machine with only the server's development package need not have.  We use
 * nothing of those; struct Port keeps its layout up to the fields at its end
 * whether they are there or not.
 *
 * src/common/libpq_methods.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_LIBPQ_METHODS_H
#define TANDEM_LIBPQ_METHODS_H

#undef ENABLE_GSS
#undef USE_OPENSSL
#undef USE_SSL

#include "libpq/auth.h"
#include "libpq/libpq.h"

/*
 * The methods as they were before the wrapper of standby.c.  Set in
 * walsenders only.
 */
extern const PQcommMethods *tandem_wrapped_methods;

#endif							/* TANDEM_LIBPQ_METHODS_H */
