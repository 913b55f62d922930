/*-------------------------------------------------------------------------
 *
 * json.c
 *	  Writes JSON.
 *
 * Output is always valid UTF-8: bytes that are not become U+FFFD.  Control
 * characters, also those above 0x7f, are escaped, so that the output is safe
 * on a terminal.
 *
 * cli/json.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <ctype.h>

#include "json.h"
#include "mb/pg_wchar.h"

void
json_init(Json *json, PQExpBuffer out, bool pretty)
{
	memset(json, 0, sizeof(*json));
	json->out = out;
	json->pretty = pretty;
	json->first = true;
}

/* Appends text as valid UTF-8, without what a terminal would obey; "written" is JSON already. */
static void
append_safe(PQExpBuffer out, const char *value, bool written)
{
	const unsigned char *s = (const unsigned char *) value;
	size_t		left = strlen(value);

	while (left > 0)
	{
		int			len = pg_encoding_mblen(PG_UTF8, (const char *) s);

		if (len > (int) left || !pg_utf8_islegal(s, len))
		{
			appendPQExpBufferStr(out, "\\ufffd");
			len = 1;
		}
		else if ((*s == '"' || *s == '\\') && !written)
			appendPQExpBuffer(out, "\\%c", *s);
		else if (*s == '\n' && !written)
			appendPQExpBufferStr(out, "\\n");
		else if (*s < 0x20 || *s == 0x7f)
			appendPQExpBuffer(out, "\\u%04x", *s);
		else if (len == 2 && utf8_to_unicode(s) < 0xa0)
			appendPQExpBuffer(out, "\\u%04x", (unsigned int) utf8_to_unicode(s));
		else
			appendBinaryPQExpBuffer(out, (const char *) s, len);
		s += len;
		left -= len;
	}
}

static void
quote(PQExpBuffer out, const char *value)
{
	appendPQExpBufferChar(out, '"');
	append_safe(out, value, false);
	appendPQExpBufferChar(out, '"');
}

/* What stands before a value: comma, new line, key. */
static void
begin_value(Json *json, const char *key)
{
	if (!json->first)
		appendPQExpBufferChar(json->out, ',');
	if (json->pretty && json->depth > 0)
		appendPQExpBuffer(json->out, "\n%*s", 2 * json->depth, "");
	else if (!json->first)
		appendPQExpBufferChar(json->out, ' ');
	json->first = false;
	if (key)
	{
		quote(json->out, key);
		appendPQExpBufferStr(json->out, ": ");
	}
}

static void
open_value(Json *json, const char *key, char opener, char closer)
{
	begin_value(json, key);
	Assert(json->depth < lengthof(json->closers));
	json->closers[json->depth++] = closer;
	appendPQExpBufferChar(json->out, opener);
	json->first = true;
}

void
json_open_object(Json *json, const char *key)
{
	open_value(json, key, '{', '}');
}

void
json_open_array(Json *json, const char *key)
{
	open_value(json, key, '[', ']');
}

void
json_close(Json *json)
{
	json->depth--;
	if (json->pretty && !json->first)
		appendPQExpBuffer(json->out, "\n%*s", 2 * json->depth, "");
	appendPQExpBufferChar(json->out, json->closers[json->depth]);
	json->first = false;
	if (json->depth == 0)
		appendPQExpBufferChar(json->out, '\n');
}

void
json_string(Json *json, const char *key, const char *value)
{
	begin_value(json, key);
	if (value)
		quote(json->out, value);
	else
		appendPQExpBufferStr(json->out, "null");
}

void
json_int(Json *json, const char *key, int64 value)
{
	begin_value(json, key);
	appendPQExpBuffer(json->out, INT64_FORMAT, value);
}

void
json_bool(Json *json, const char *key, bool value)
{
	begin_value(json, key);
	appendPQExpBufferStr(json->out, value ? "true" : "false");
}

void
json_null(Json *json, const char *key)
{
	json_string(json, key, NULL);
}

/* JSON's grammar of a number: -?int[.digits][e[+-]digits] */
static bool
is_number(const char *s)
{
	if (*s == '-')
		s++;
	if (!isdigit((unsigned char) *s) || (s[0] == '0' && isdigit((unsigned char) s[1])))
		return false;
	s += strspn(s, "0123456789");
	if (*s == '.')
	{
		s++;
		if (!isdigit((unsigned char) *s))
			return false;
		s += strspn(s, "0123456789");
	}
	if (*s == 'e' || *s == 'E')
	{
		s++;
		if (*s == '+' || *s == '-')
			s++;
		if (!isdigit((unsigned char) *s))
			return false;
		s += strspn(s, "0123456789");
	}
	return *s == '\0';
}

void
json_number(Json *json, const char *key, const char *value)
{
	begin_value(json, key);
	appendPQExpBufferStr(json->out, value && is_number(value) ? value : "null");
}

void
json_written(Json *json, const char *key, const char *value)
{
	begin_value(json, key);
	append_safe(json->out, value ? value : "null", true);
}
