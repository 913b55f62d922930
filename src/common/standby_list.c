/*-------------------------------------------------------------------------
 *
 * standby_list.c
 *	  The grammar of standby lists, and the settings that are such lists.
 *
 * A list names physical slots, in the grammar of synchronous_standby_names.
 * It is parsed when the setting is checked; the parsed list is the "extra" of
 * the setting, so each process has the one of the configuration it has read.
 *
 * src/common/standby_list.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "common/compat.h"
#include "common/standby.h"

const TandemStandbyList *tandem_standby_slots_list = NULL;
uint64		tandem_standby_slots_version = 0;
const TandemStandbyList *tandem_failback_standbys_list = NULL;

/*
 * list    := names | ( ANY | FIRST ) number "(" names ")"
 * names   := name [ "," name ]...
 * name    := lower case letters, digits, underscores; or that in double quotes
 *
 * ANY and FIRST are words of the grammar only when a number follows, so that
 * slots may have these names.
 */

typedef enum TokenKind
{
	TOKEN_END,
	TOKEN_WORD,
	TOKEN_QUOTED,
	TOKEN_COMMA,
	TOKEN_OPEN,
	TOKEN_CLOSE,
	TOKEN_BAD
} TokenKind;

typedef struct Token
{
	TokenKind	kind;
	const char *start;			/* without quotes */
	int			len;
	const char *end;			/* where the next one begins */
} Token;

static Token
next_token(const char *p)
{
	Token		token;

	while (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')
		p++;

	token.start = p;
	token.len = 1;
	switch (*p)
	{
		case '\0':
			token.kind = TOKEN_END;
			token.len = 0;
			break;
		case ',':
			token.kind = TOKEN_COMMA;
			break;
		case '(':
			token.kind = TOKEN_OPEN;
			break;
		case ')':
			token.kind = TOKEN_CLOSE;
			break;
		case '"':
			{
				const char *close = strchr(p + 1, '"');

				if (close == NULL)
				{
					token.kind = TOKEN_BAD;
					token.len = strlen(p);
				}
				else
				{
					token.kind = TOKEN_QUOTED;
					token.start = p + 1;
					token.len = close - token.start;
					token.end = close + 1;
					return token;
				}
				break;
			}
		default:
			token.kind = TOKEN_WORD;
			token.len = strcspn(p, " \t\n\r,()\"");
			break;
	}
	token.end = token.start + token.len;
	return token;
}

static bool
token_is(const Token *token, const char *keyword)
{
	return token->kind == TOKEN_WORD &&
		token->len == strlen(keyword) &&
		pg_strncasecmp(token->start, keyword, token->len) == 0;
}

static bool
token_is_number(const Token *token)
{
	return token->kind == TOKEN_WORD &&
		strspn(token->start, "0123456789") >= token->len;
}

#define LIST_HINT() \
	GUC_check_errhint("Write physical slot names as \"a, b\" for all of them, \"ANY n (a, b)\" or \"FIRST n (a, b)\".")

/*
 * Is this a name that a slot can have?  The rules are those of
 * ReplicationSlotValidateName, whose interface differs between minor
 * releases.
 */
static bool
check_name(const Token *token)
{
	int			ok = strspn(token->start, "abcdefghijklmnopqrstuvwxyz0123456789_");

	if (token->len == 0)
	{
		GUC_check_errdetail("The list has an empty name.");
		LIST_HINT();
		return false;
	}
	if (token->len == 1 && token->start[0] == '*')
	{
		GUC_check_errdetail("\"*\" can't stand for all standbys, because nobody would know which one is missing.");
		GUC_check_errhint("Name the physical slot of each standby.");
		return false;
	}
	if (ok < token->len)
	{
		GUC_check_errdetail("Name \"%.*s\" has the character \"%.*s\", which no slot name has.",
							token->len, token->start,
							pg_mblen(token->start + ok), token->start + ok);
		GUC_check_errhint("Slot names consist of lower case letters, digits and underscores.");
		return false;
	}
	if (token->len >= NAMEDATALEN)
	{
		GUC_check_errdetail("Name \"%.*s\" is longer than a slot name can be.",
							token->len, token->start);
		GUC_check_errhint("Name the physical slot that the standby has in primary_slot_name.");
		return false;
	}
	return true;
}

/* Complains about a token that the grammar does not allow here. */
static bool
unexpected(const Token *token, const char *wanted)
{
	if (token->kind == TOKEN_END)
		GUC_check_errdetail("The list ends where %s is expected.", wanted);
	else if (token->kind == TOKEN_BAD)
		GUC_check_errdetail("A double quote is not closed.");
	else
		GUC_check_errdetail("\"%.*s\" stands where %s is expected.",
							token->len, token->start, wanted);
	LIST_HINT();
	return false;
}

/*
 * Parses a list into *list, which has room for TANDEM_MAX_STANDBYS names.  On error
 * tells the reason in GUC_check_errdetail and returns false.
 */
static bool
parse_list(const char *text, TandemStandbyList *list)
{
	Token		token = next_token(text);
	bool		parenthesis = false;

	list->mode = TANDEM_STANDBYS_ALL;
	list->required = 0;
	list->nnames = 0;

	if (token_is(&token, "any") || token_is(&token, "first"))
	{
		Token		number = next_token(token.end);

		if (token_is_number(&number))
		{
			list->mode = token_is(&token, "any") ?
				TANDEM_STANDBYS_ANY :
				TANDEM_STANDBYS_FIRST;
			/* more digits than that is more than the names in any case */
			list->required = number.len > 6 ? 999999 : atoi(number.start);
			if (list->required == 0)
			{
				GUC_check_errdetail("The number of standbys must be at least 1.");
				LIST_HINT();
				return false;
			}
			token = next_token(number.end);
			if (token.kind != TOKEN_OPEN)
				return unexpected(&token, "\"(\"");
			parenthesis = true;
			token = next_token(token.end);
		}
	}

	for (;;)
	{
		Name name = &list->names[list->nnames];

		if (token.kind == TOKEN_COMMA || token.kind == TOKEN_CLOSE ||
			(token.kind == TOKEN_END && list->nnames > 0))
		{
			GUC_check_errdetail("The list has an empty element.");
			LIST_HINT();
			return false;
		}
		if (token.kind != TOKEN_WORD && token.kind != TOKEN_QUOTED)
			return unexpected(&token, "a slot name");
		if (!check_name(&token))
			return false;

		memset(name, 0, sizeof(NameData));
		memcpy(NameStr(*name), token.start, token.len);
		if (tandem_standby_list_has(list, NameStr(*name)))
		{
			GUC_check_errdetail("Name \"%s\" is in the list twice.", NameStr(*name));
			GUC_check_errhint("Name each standby's physical slot once.");
			return false;
		}
		if (++list->nnames >= TANDEM_MAX_STANDBYS)
		{
			GUC_check_errdetail("The list has more than %d names.", TANDEM_MAX_STANDBYS - 1);
			GUC_check_errhint("Name only standbys that may be promoted.");
			return false;
		}

		token = next_token(token.end);
		if (token.kind != TOKEN_COMMA)
			break;
		token = next_token(token.end);
	}

	if (parenthesis)
	{
		if (token.kind != TOKEN_CLOSE)
			return unexpected(&token, "\",\" or \")\"");
		token = next_token(token.end);
		if (list->required > list->nnames)
		{
			GUC_check_errdetail("The list demands more standbys than the %d it names.",
								list->nnames);
			GUC_check_errhint("Lower the number or name more standbys.");
			return false;
		}
	}
	else
		list->required = list->nnames;

	if (token.kind != TOKEN_END)
		return unexpected(&token, parenthesis ? "the end" : "\",\"");
	return true;
}

/* check_hook of every setting that is a standby list */
bool
tandem_check_standby_list(char **newval, void **extra, GucSource source)
{
	TandemStandbyListRoom room;
	TandemStandbyList *parsed = (TandemStandbyList *) &room;
	size_t		size;
	Token		first = next_token(*newval);

	*extra = NULL;
	if (first.kind == TOKEN_END)
		return true;

	if (!parse_list(*newval, parsed))
		return false;

	size = TANDEM_STANDBY_LIST_SIZE(parsed->nnames);
	*extra = TANDEM_GUC_MALLOC(size);
	if (*extra == NULL)
	{
		GUC_check_errmsg("out of memory");
		return false;
	}
	memcpy(*extra, parsed, size);
	return true;
}

/* assign_hook of tandem.standby_slots */
void
tandem_assign_standby_slots(const char *newval, void *extra)
{
	tandem_standby_slots_list = (const TandemStandbyList *) extra;
	tandem_standby_slots_version++;
}

/* assign_hook of tandem.failback_standbys */
void
tandem_assign_failback_standbys(const char *newval, void *extra)
{
	tandem_failback_standbys_list = (const TandemStandbyList *) extra;
}

/* Is this name in the list?  An empty list (NULL) has none. */
bool
tandem_standby_list_has(const TandemStandbyList *list, const char *name)
{
	for (int i = 0; list != NULL && i < list->nnames; i++)
	{
		if (strcmp(NameStr(list->names[i]), name) == 0)
			return true;
	}
	return false;
}
