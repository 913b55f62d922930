/*-------------------------------------------------------------------------
 *
 * json.h
 *	  Writes JSON; see json.c.
 *
 * cli/json.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_JSON_H
#define TANDEM_JSON_H

#include "postgres_fe.h"

#include "pqexpbuffer.h"

typedef struct Json
{
	PQExpBuffer out;
	bool		pretty;			/* one member a line */
	bool		first;			/* nothing in this object or array yet */
	int			depth;
	char		closers[16];	/* what ends each open object or array */
} Json;

extern void json_init(Json *json, PQExpBuffer out, bool pretty);

/* In an array (and at the top) "key" is NULL. */
extern void json_open_object(Json *json, const char *key);
extern void json_open_array(Json *json, const char *key);
extern void json_close(Json *json);

/* NULL writes null. */
extern void json_string(Json *json, const char *key, const char *value);
extern void json_int(Json *json, const char *key, int64 value);
extern void json_bool(Json *json, const char *key, bool value);
extern void json_null(Json *json, const char *key);

/* A number as text from a server, null if it is not one. */
extern void json_number(Json *json, const char *key, const char *value);

/* What a server has written as JSON; NULL writes null. */
extern void json_written(Json *json, const char *key, const char *value);

#endif							/* TANDEM_JSON_H */
